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

from mlflow_perf.node.place import Node
from mlflow_perf.recorders import spool

__all__ = ["SpoolFolder"]

_PRESENT = ".rank"
_COUNTED = ".came"
_POLL_SEC = 0.02
# For ranks that still record. Not for ever: they may wait for this one, in a barrier after our end.
_LINGER_SEC = 10.0
# For ranks that have not begun yet, as a multiple of the time that this one took to begin: where
# many start at once on few cores, the last comes long after the first. Counted from this one's
# beginning, so that a job which takes longer than that waits for nobody.
_LATER_THAN_US = 3.0
_MAX_START_SEC = 30.0

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
        self._begun = time.monotonic()
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
        (path / f"{node.rank}{_COUNTED}").touch()
        return path

    def _presence(self, path: Path) -> Path:
        return path / f"{self._node.rank}{_PRESENT}"

    def wait_for_others(self, timeout_sec: float) -> None:
        """Wait until the other ranks on this node have ended their recordings, or are dead."""
        if not self._shared or self.path is None:
            return
        self.leave()
        began = time.monotonic()
        until = began + timeout_sec
        while time.monotonic() < min(until, self._latest()) and self._some_to_come(self.path):
            time.sleep(_POLL_SEC)
        until = min(until, time.monotonic() + _LINGER_SEC)
        while (left := _present(self.path)) and time.monotonic() < until:
            time.sleep(_POLL_SEC)
        if left:
            _log.warning(
                "Operations that %d other ranks of this node recorded last may be missing: they "
                "have not ended yet.", len(left),
            )  # fmt: skip

    def _some_to_come(self, path: Path) -> bool:
        """Whether ranks of this node have not begun yet."""
        return len(list(path.glob(f"*{_COUNTED}"))) < self._node.local_size

    def _latest(self) -> float:
        """Return the monotonic time after which a rank that has not come will not come."""
        return self._begun + _LATER_THAN_US * min(_age_sec(until=self._begun), _MAX_START_SEC)

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


def _age_sec(*, until: float) -> float:
    """Return how long this process had lived at a monotonic time; 0 where nobody tells."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        born = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        alive = time.clock_gettime(time.CLOCK_BOOTTIME) - born
    except (OSError, ValueError, AttributeError, IndexError):
        return 0.0
    return max(0.0, alive - (time.monotonic() - until))


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
