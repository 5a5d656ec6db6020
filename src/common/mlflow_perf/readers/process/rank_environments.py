"""The environments that the other ranks on this node were started with.

A launcher may leave each rank a GPU of its own, while one rank samples for the whole node. The GPUs
that a rank may use are in its environment, which the kernel shows to processes of the same user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from mlflow_perf.node.launchers import LAUNCHERS
from mlflow_perf.readers.procfile import read_text

_RANKS = frozenset(name for row in LAUNCHERS for name in (row.rank, row.local_rank) if name)


class RankEnvironments:
    """Finds the other ranks among the processes below the launcher.

    Args:
        root_pid: The launcher's process on this node; None where this is the only rank.
        proc: Where procfs is mounted.
        environ: This rank's own environment.
    """

    def __init__(
        self,
        root_pid: int | None = None,
        *,
        proc: Path | str = "/proc",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._root, self._proc, self._environ = root_pid, Path(proc), environ

    def find_with_any(self, names: tuple[str, ...]) -> list[Mapping[str, str]]:
        """Return, rank by rank, the environments of the other ranks that have any of some names.

        Args:
            names: Variables that name the devices of a rank. For a rank of which no process has one
                (wrapper scripts and their children included), its first environment is returned.
        """
        known_by = sorted(_RANKS & self._environ.keys())
        if self._root is None or not known_by:
            return []
        own = tuple(self._environ[name] for name in known_by)
        ranks: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
        for environ in self._read_below(self._root):
            rank = tuple(environ.get(name, "") for name in known_by)
            if all(rank) and rank != own:
                ranks.setdefault(rank, []).append(environ)
        found: list[Mapping[str, str]] = []
        for rank in sorted(ranks):
            found += [e for e in ranks[rank] if e.keys() & set(names)] or ranks[rank][:1]
        return found

    def _read_below(self, root: int) -> Iterator[Mapping[str, str]]:
        """Yield the environments of the processes that descend from one, by PID."""
        parents: dict[int, int] = {}
        for folder in self._proc.iterdir():
            if folder.name.isdecimal():
                fields = (read_text(folder / "stat") or "").rpartition(")")[2].split()
                if len(fields) > 1:
                    parents[int(folder.name)] = int(fields[1])
        for pid in sorted(parents):
            ancestor: int | None = parents[pid]
            for _ in parents:  # a bound, for PIDs that were reused while they were listed
                if ancestor is None or ancestor == root:
                    break
                ancestor = parents.get(ancestor)
            if ancestor != root or pid == root:
                continue
            pairs = (read_text(self._proc / str(pid) / "environ") or "").split("\0")
            if environ := dict(pair.split("=", 1) for pair in pairs if "=" in pair):
                yield environ
