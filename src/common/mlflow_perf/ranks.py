"""The processes of one job on one node find each other, through a folder and nothing else.

The rank that samples waits at its end for the others' last operations. Imports node and spool.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path

from mlflow_perf import spool
from mlflow_perf.node import Node

__all__ = ["SpoolFolder"]

_PRESENT = ".rank"
_POLL_SEC = 0.02

_log = logging.getLogger(__name__)


class SpoolFolder:
    """The folder through which the processes of a job on this node hand over their operations.

    Args:
        node: This process's place in its job.
        run_id: The job's run, by which ranks without a launcher's job id find each other.
        parent: Where a job of one process has its folder.

    Attributes:
        path: The folder; None where none could be made, so that only this process is heard.
    """

    def __init__(self, node: Node, run_id: str | None, *, parent: Path) -> None:
        self._node = node
        self._shared = node.world_size > 1 and not node.pool
        self.path: Path | None = None
        try:
            self.path = self._make_shared(run_id) if self._shared else _make(parent)
        except OSError as error:
            _log.warning("Operations of other processes cannot be gathered: %s", error)

    def _make_shared(self, run_id: str | None) -> Path:
        node = self._node
        # The run of the environment is the same in all ranks, and tells two steps of one
        # scheduler's job apart.
        shared = (node.job_id, os.environ.get("MLFLOW_RUN_ID"))
        job = f"{node.launcher}:{shared if any(shared) else run_id or os.getppid()}:{node.index}"
        name = hashlib.sha256(job.encode()).hexdigest()[:16]
        owner = os.getuid() if hasattr(os, "getuid") else 0
        base = Path(tempfile.gettempdir()) / f"mlflow-perf-{owner}"
        path = base / f"spool-{name}"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "getuid") and (path.is_symlink() or base.lstat().st_uid != owner):
            raise PermissionError(f"{base} belongs to another user")
        self._presence(path).write_text(str(os.getpid()), encoding="ascii")
        return path

    def _presence(self, path: Path) -> Path:
        return path / f"{self._node.rank}{_PRESENT}"

    def wait_for_others(self, timeout_sec: float) -> None:
        """Wait until the other ranks on this node have ended their recordings, or are dead."""
        if not self._shared or self.path is None:
            return
        self.leave()
        until = time.monotonic() + timeout_sec
        while (left := _present(self.path)) and time.monotonic() < until:
            time.sleep(_POLL_SEC)
        if left:
            _log.warning(
                "Operations that %d other ranks of this node recorded last may be missing: they "
                "have not ended yet.", len(left),
            )  # fmt: skip

    def leave(self) -> None:
        """Say that this rank records no more."""
        if self._shared and self.path is not None:
            with contextlib.suppress(OSError):
                self._presence(self.path).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder: all that is in it was gathered."""
        if self.path is not None:
            spool.remove(self.path)


def _make(parent: Path) -> Path:
    with contextlib.suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return spool.create(parent)
    return spool.create()


def _present(path: Path) -> list[int]:
    """Return the process ids of the ranks that are still recording."""
    pids = []
    for file in path.glob(f"*{_PRESENT}"):
        try:
            pid = int(file.read_text(encoding="ascii"))
            os.kill(pid, 0)
        except (OSError, ValueError):
            continue
        pids.append(pid)
    return pids
