"""The process of a pipeline's runner, as a step's worker on the same machine watches it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

from mlflow_perf.node.exit_cause import boot_id, pid_namespace

_LOOK_SEC = 1.0
_SAME_SEC = 60.0  # a clock that is set moves what is told of the start of processes


@dataclass(frozen=True, slots=True)
class RunnerProcess:
    """Names the process of a pipeline's runner.

    Attributes:
        pid: Its number.
        created: Unix time of its start.
        place: Where the number is its own: the boot of a machine and the namespace of processes.
    """

    pid: int
    created: float
    place: str

    @classmethod
    def current(cls) -> RunnerProcess:
        """Return the name of this process."""
        return cls(os.getpid(), psutil.Process().create_time(), _find_place())

    def is_gone(self) -> bool:
        """Return whether it has ended; it has not if that cannot be known."""
        if not self.place or self.place != _find_place():
            return False
        try:
            process = psutil.Process(self.pid)
            is_other = abs(process.create_time() - self.created) > _SAME_SEC
            return is_other or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False


class RunnerWatch:
    """Looks now and then whether a pipeline's runner is there.

    Args:
        runner: The runner; None for one that is not to be watched.
    """

    def __init__(self, runner: RunnerProcess | None) -> None:
        self._runner = runner if runner is None or runner.pid != os.getpid() else None
        self._next = time.monotonic()

    def is_gone(self) -> bool:
        """Return whether the runner is seen to be gone now."""
        now = time.monotonic()
        if self._runner is None or now < self._next:
            return False
        self._next = now + _LOOK_SEC
        return self._runner.is_gone()


def _find_place() -> str:
    """Return where process numbers are those of this process; empty if that is unknown."""
    boot, namespace = boot_id(), pid_namespace()
    return f"{boot} {namespace}" if boot and namespace else ""
