"""Commands whose work runs elsewhere, such as `srun`, whose tasks are started by a daemon.

The tasks are no descendants of the command, so a wrapper around it measures none of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

_LAUNCHERS = {"srun", "aprun", "jsrun", "lrun", "flux", "docker", "nerdctl", "kubectl", "ssh"}
# In the middle of a script these only start tasks of a job; an ssh or docker may be anything.
_BELOW = {"srun", "aprun", "jsrun", "lrun"}
_MPI = {"mpiexec", "mpirun", "orterun", "prterun", "mpiexec.hydra", "mpirun.openmpi"}
_BELOW_MPI = _BELOW | {"ssh", "rsh"}
_LOOK_FACTOR = 2


class RemoteTasks:
    """Watches a command for programs that start their tasks elsewhere.

    Args:
        argv: The command.
        pid: Its process id.

    Attributes:
        launcher: The program that was found; None while there is none.
    """

    def __init__(self, argv: Sequence[str], pid: int) -> None:
        name = Path(argv[0]).name
        self.launcher: str | None = None
        self._own_name = name if name in _LAUNCHERS else None
        self._pid = pid
        self._names = _BELOW_MPI if name in _MPI else _BELOW
        self._looks, self._next = 0, 1

    def look(self) -> bool:
        """Look at the command's descendants, ever more rarely, because there may be hundreds.

        Returns:
            Whether a launcher was found now.
        """
        self._looks += 1
        if self.launcher is not None or self._looks < self._next:
            return False
        self._next *= _LOOK_FACTOR
        self.launcher = self._own_name or self._find_below()
        return self.launcher is not None

    def _find_below(self) -> str | None:
        waiting = [self._pid]
        while waiting:
            folder = Path("/proc", str(waiting.pop()))
            with contextlib.suppress(OSError):  # it has ended
                name = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
                if name in self._names:
                    return name
                for task in (folder / "task").iterdir():
                    waiting += map(int, (task / "children").read_text("ascii").split())
        return None


def explain_remote(launcher: str) -> str:
    """Return a sentence on the missing part of a report, with a recommendation."""
    return (
        f"{launcher} had its tasks started outside this command, so their CPU time and memory are "
        f"not measured: write {launcher} … mlflow-perf run -- CMD."
    )
