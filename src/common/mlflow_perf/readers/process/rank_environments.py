"""The environments of the other ranks on this node, as they were started. Imports node, procfile.

A launcher may leave each rank a GPU of its own, while one rank samples for the node. What a rank
was left stands in its environment, which the kernel shows to processes of the same user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from mlflow_perf.node.place import LAUNCHERS
from mlflow_perf.readers.procfile import read_text

__all__ = ["RankEnvironments"]

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

    def with_any_of(self, names: tuple[str, ...]) -> list[Mapping[str, str]]:
        """Return, rank by rank, the environments of others that say what they may use.

        Args:
            names: Variables that say so. A rank of which no process has one, a wrapper's child
                included, is in the answer with what it was started with.
        """
        known_by = sorted(_RANKS & self._environ.keys())
        if self._root is None or not known_by:
            return []
        own = tuple(self._environ[name] for name in known_by)
        ranks: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
        for environ in self._below():
            rank = tuple(environ.get(name, "") for name in known_by)
            if all(rank) and rank != own:
                ranks.setdefault(rank, []).append(environ)
        return [
            environ
            for rank in sorted(ranks)
            for environ in (
                [e for e in ranks[rank] if e.keys() & set(names)] or ranks[rank][:1]
            )
        ]  # fmt: skip

    def _below(self) -> Iterator[Mapping[str, str]]:
        parents = dict(self._parents())
        for pid in sorted(parents):
            if pid == self._root or not self._is_below(pid, parents):
                continue
            text = read_text(self._proc / str(pid) / "environ")
            if text:
                yield dict(_pairs(text))

    def _is_below(self, pid: int, parents: Mapping[int, int]) -> bool:
        for _ in range(len(parents)):
            if pid == self._root:
                return True
            if pid not in parents:
                return False
            pid = parents[pid]
        return False

    def _parents(self) -> Iterator[tuple[int, int]]:
        for folder in self._proc.iterdir():
            if folder.name.isdecimal():
                fields = (read_text(folder / "stat") or "").rpartition(")")[2].split()
                if len(fields) > 1:
                    yield int(folder.name), int(fields[1])


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in text.split("\0"):
        name, is_pair, value = pair.partition("=")
        if is_pair:
            yield name, value
