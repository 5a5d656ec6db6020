"""The sampler of Python 3.15 as the engine: another process reads the stacks from memory.

The engine starts this module as that process. It writes each sample to the spool folder, as the
job's own processes do with our sampler, so that a job that is killed keeps its profile.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import SettingError
from mlflow_perf.model.samples import CHILD_PROCESSES, MAIN_THREAD, OTHER_THREADS, Function, Sample
from mlflow_perf.recorders.collect import collect_stacks
from mlflow_perf.recorders.profile.beside import Beside, BesideEngine
from mlflow_perf.recorders.profile.frames import FrameNames
from mlflow_perf.recorders.profile.windows import StackWindow

_FIRST_VERSION = (3, 15)
_MODE_ALL = 3  # of all threads, with what each does
_LOOK_SEC = 0.5
_MOST_TRIES = 4
_ROOT = str(Path(__file__).resolve().parents[3])
_PACKAGE = str(Path(__file__).resolve().parents[2])
_PROGRAM = f"""
import sys
sys.path.insert(0, sys.argv.pop(1))
from {__name__} import sample_beside
sample_beside(*sys.argv[1:])
"""

_log = get_logger(__name__)
_remote: Any = None
with contextlib.suppress(ImportError):
    _remote = import_module("_remote_debugging")


def check_version(version: tuple[int, ...]) -> None:
    """Raise where Python has no sampler.

    Args:
        version: Python's version, two numbers.

    Raises:
        SettingError: When it is older than 3.15.
    """
    if version < _FIRST_VERSION or _remote is None:
        raise SettingError(
            "MLFLOW_PERF_PROFILE_ENGINE is 'python', the sampler that Python has from 3.15 on; "
            f"this is Python {version[0]}.{version[1]}. Use 'own' or 'py-spy'."
        )


class PythonEngine(BesideEngine):
    """Takes the stacks of a process and of the Python processes below it by Python's sampler."""

    def _start(self, beside: Beside) -> None:
        beside.start(
            "python", '"$@"', sys.executable, "-W", "ignore", "-c", _PROGRAM,
            _ROOT, str(os.getpid()), str(self._spool or beside.folder), f"{self._rate_hz:g}",
            "command" if self._is_command else "",
        )  # fmt: skip

    def _read(self, beside: Beside, ended: float) -> None:
        del ended
        if (beside.folder / "python.log").stat().st_size:
            raise beside.explain("python", "Python's sampler")
        if self._spool is None:
            self._found = collect_stacks(beside.folder)


class _Target:
    """One process whose stacks are read.

    Raises:
        OSError: When it cannot be read.
        RuntimeError: Likewise.
    """

    def __init__(self, pid: int, is_main: bool, rate_hz: float, folder: str) -> None:
        self._unwinder = _remote.RemoteUnwinder(
            pid, all_threads=True, mode=_MODE_ALL, skip_non_matching_threads=False
        )
        self._pid = pid
        self._roots = (
            (MAIN_THREAD, OTHER_THREADS) if is_main else (CHILD_PROCESSES, CHILD_PROCESSES)
        )
        self._window = StackWindow(rate_hz)
        self._window.spool_to(Path(folder))
        self._names = FrameNames()
        self._known: dict[Any, tuple[Function, ...]] = {}
        self._lines: dict[tuple[str, str], int] = {}
        self._last = time.time()

    def sample(self) -> None:
        """Add what each thread does now."""
        interpreters = self._unwinder.get_stack_trace()
        now = time.time()
        wall, self._last = max(0.0, now - self._last), now
        for thread in (one for each in interpreters for one in each.threads):
            is_main = thread.thread_id == self._pid
            frames = [(f.funcname, f.filename, self._read_line(f)) for f in thread.frame_info]
            if not frames or (not is_main and self._is_ours(frames)):
                continue
            line, key = frames[0][2], tuple(frame[:2] for frame in frames)
            if key not in self._known:
                # Only the present line is known: the first line seen is taken for the function's.
                self._known[key] = self._names.name_all(
                    (name, file, self._lines.setdefault((name, file), at))
                    for name, file, at in frames
                )
            cpu = wall if thread.status & _remote.THREAD_STATUS_ON_CPU else 0.0
            sample = Sample(self._roots[not is_main], line, self._known[key])
            self._window.add(sample, now - wall / 2, wall, cpu)

    @staticmethod
    def _read_line(frame: Any) -> int:
        return int(frame.location[0]) if frame.location else 0

    @staticmethod
    def _is_ours(frames: list[tuple[str, str, int]]) -> bool:
        """Return whether a thread's work is that of mlflow-perf."""
        works = (file for _, file, _ in reversed(frames) if not file.endswith("threading.py"))
        return next(works, "").startswith(_PACKAGE)


def sample_beside(pid: str, folder: str, rate_hz: str, command: str = "") -> None:
    """Sample a process and the Python processes below it until SIGINT, or until they end.

    Args:
        pid: The process.
        folder: The spool folder.
        rate_hz: Samples per second.
        command: Anything if the job is the first child of the process.
    """
    job, period = int(pid), 1.0 / float(rate_hz)
    main = 0 if command else job
    targets: dict[int, _Target] = {}
    tries: Counter[int] = Counter({job: _MOST_TRIES} if command else {})
    looked = 0.0
    try:
        while Path(f"/proc/{pid}").exists():
            begin = time.monotonic()
            if begin - looked > _LOOK_SEC:
                looked = begin
                for one in (job, *_remote.get_child_pids(job, recursive=True)):
                    if tries[one] >= _MOST_TRIES or not _remote.is_python_process(one):
                        continue
                    try:
                        targets[one] = _Target(one, one == (main or one), float(rate_hz), folder)
                    except (OSError, RuntimeError):
                        tries[one] += 1  # it has just begun, or is another Python
                        if one == job:
                            raise
                    else:
                        tries[one], main = _MOST_TRIES, main or one
            for one, target in [*targets.items()]:
                try:
                    target.sample()
                except ProcessLookupError:
                    del targets[one]
                except (OSError, RuntimeError, UnicodeDecodeError, MemoryError):
                    pass  # it changed while it was read
            time.sleep(max(0.0, begin + period - time.monotonic()))
    except KeyboardInterrupt:
        pass
