"""The stacks of one recording: sampled in this process and in all Python processes below it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Protocol

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.integrations import startup
from mlflow_perf.model.profile_building import build_profile
from mlflow_perf.model.samples import RawStacks
from mlflow_perf.recorders.collect import collect_stacks
from mlflow_perf.recorders.profile import live
from mlflow_perf.recorders.profile.ended import EndedProcesses
from mlflow_perf.recorders.profile.windows import StackWindow

_log = get_logger(__name__)


class StackEngine(Protocol):
    """Takes the stacks of a job. Its methods are called in this order, each once."""

    def offer(self, folder: Path | None, *, is_command: bool) -> None:
        """Let the Python processes that are started from now on be sampled.

        Args:
            folder: Spool folder of the session; None where only this process is sampled.
            is_command: Whether the job is a child of this process, which does nothing itself.
        """

    def begin(self) -> None:
        """Make ready to sample this process, if it is the job's."""

    def note_begin(self) -> None:
        """Sample from this moment on."""

    def tidy(self) -> None:
        """Keep the other processes' samples small; called from time to time."""

    def note_end(self) -> None:
        """Leave out what comes after this moment."""

    def end(self) -> None:
        """Sample this process no longer."""

    def collect(self) -> None:
        """Take over what the other processes have sampled."""

    def list_stacks(self) -> list[RawStacks]:
        """Return what was sampled so far."""


def open_engine(name: str, rate_hz: float | None) -> StackEngine:
    """Return the engine of a name: `own`, `py-spy` or `python`.

    Raises:
        SettingError: When py-spy is not installed, or Python has no sampler.
    """
    if name == "py-spy" and rate_hz != 0:
        from mlflow_perf.recorders.profile.py_spy import PySpyEngine, find_py_spy

        return PySpyEngine(rate_hz, find_py_spy())
    if name == "python" and rate_hz != 0:
        from mlflow_perf.recorders.profile.python_sampler import PythonEngine, check_version

        check_version(sys.version_info[:2])
        return PythonEngine(rate_hz)
    return OwnEngine(rate_hz)


class OwnEngine:
    """A thread in each Python process of the job samples it.

    Args:
        rate_hz: Samples per second; None for the default, 0 for none: then nothing is done.
    """

    def __init__(self, rate_hz: float | None) -> None:
        self._rate_hz = rate_hz
        self._is_command = False
        self._folder: Path | None = None
        self._window: StackWindow | None = None
        self._ended: EndedProcesses | None = None
        self._found: list[RawStacks] = []

    def offer(self, folder: Path | None, *, is_command: bool) -> None:
        """Let the Python processes that are started from now on sample themselves.

        Args:
            folder: Spool folder of the session; None where only this process is sampled.
            is_command: Whether the job is a child of this process, which does nothing itself.
        """
        self._is_command = is_command
        if self._rate_hz == 0 or folder is None:
            return
        try:
            live.offer(folder, self._rate_hz, command_of=os.getpid() if is_command else None)
        except OSError as error:
            _log.warning("The stacks of other processes are not sampled: %s", error)
            return
        self._folder = folder
        self._ended = EndedProcesses(folder, self._rate_hz)
        startup.add_to_path("profile")

    def begin(self) -> None:
        """Make ready to sample this process, if it is the job's."""
        if self._rate_hz != 0 and not self._is_command:
            self._window = live.begin(self._rate_hz, self._folder, held=True)

    def note_begin(self) -> None:
        """Sample from this moment on."""
        if self._window is not None:
            live.release(self._window)

    def tidy(self) -> None:
        """Merge the samples of ended processes where there are many."""
        if self._ended is not None:
            self._ended.merge()

    def note_end(self) -> None:
        """Leave out what comes after this moment."""
        if self._window is not None:
            live.note_end(self._window)

    def end(self) -> None:
        """Sample this process no longer."""
        startup.remove_from_path("profile")
        live.withdraw()
        if self._window is not None:
            self._found = [live.end(self._window)]

    def collect(self) -> None:
        """Take over what the other processes have sampled."""
        if self._folder is not None:
            own = None if self._window is None else self._window.source
            self._found += collect_stacks(self._folder, but=own)

    def list_stacks(self) -> list[RawStacks]:
        """Return what was sampled so far."""
        so_far = [self._window.as_raw()] if self._window is not None and not self._found else []
        return [*self._found, *so_far]


def build_job_profile(
    engine: StackEngine, started: float | None, duration_sec: float | None
) -> dict[str, Any] | None:
    """Return the profile of the job so far; None without samples.

    Args:
        engine: What took the stacks.
        started: Unix time at which the job began.
        duration_sec: Its length.
    """
    if started is None or duration_sec is None:
        return None
    return build_profile(engine.list_stacks(), started=started, duration_sec=duration_sec)
