"""py-spy as the engine that takes the stacks: another process reads them from this one's memory.

Two of them run, because py-spy either takes threads that wait, too, or only those that compute.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Thread
from mlflow_perf.errors import DocumentError, SettingError
from mlflow_perf.model.profile import (
    CHILD_PROCESSES,
    FINEST_SEC,
    MAIN_THREAD,
    OTHER_THREADS,
    Function,
    RawStacks,
    Sample,
)
from mlflow_perf.recorders.profile.frames import FrameNames
from mlflow_perf.recorders.profile.windows import StackWindow

DEFAULT_HZ = 50.0
_LONGEST_END_SEC = 10.0
_MOST_PARTS = 2000

_log = get_logger(__name__)


def find_py_spy() -> str:
    """Return the path of py-spy's program.

    Raises:
        SettingError: When it is not installed.
    """
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise SettingError(
            "MLFLOW_PERF_PROFILE_ENGINE is 'py-spy', which is not installed: "
            "pip install 'mlflow-perf[pyspy]'."
        )
    return found


class PySpyEngine:
    """Takes the stacks of a process and of the Python processes below it through py-spy.

    Args:
        rate_hz: Samples per second; None for the default.
        program: py-spy's program.
    """

    def __init__(self, rate_hz: float | None, program: str) -> None:
        self._rate_hz = DEFAULT_HZ if rate_hz is None else rate_hz
        self._program = program
        self._is_command = False
        self._folder: Path | None = None
        self._began = 0.0
        self._pids: list[int] = []
        self._ours: set[int | None] = set()
        self._found: list[RawStacks] = []

    def offer(self, folder: Path | None, *, is_command: bool) -> None:
        """Note whether the job is a child of this process; py-spy finds the others itself."""
        self._is_command = is_command

    def begin(self) -> None:
        """Start py-spy, out of reach of the job's terminal and of what it does to its children."""
        self._began = time.time()
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="mlflow-perf-py-spy-"))
            for name, option in (("all", ["--idle"]), ("computing", [])):
                command = [
                    self._program, "record", "--pid", str(os.getpid()), "--subprocesses",
                    "--nonblocking", "--rate", f"{max(1, round(self._rate_hz))}", "--function",
                    "--full-filenames", "--format", "chrometrace", *option,
                    "--output", str(self._folder / name),
                ]  # fmt: skip
                self._pids.append(_start(command, self._folder / f"{name}.log"))
        except (OSError, ValueError) as error:
            _log.warning("The job's stacks are not sampled: py-spy did not start: %s", error)

    def note_begin(self) -> None:
        """Note which threads are ours; what came before is cut off when the profile is built."""
        self._ours |= {one.ident for one in threading.enumerate() if isinstance(one, Thread)}

    def tidy(self) -> None:
        """Do nothing: the other processes leave no files."""

    def note_end(self) -> None:
        """Note which threads are ours; what comes after is cut off when the profile is built."""
        self.note_begin()

    def end(self) -> None:
        """Stop py-spy, and read what it has written."""
        for pid in self._pids:
            self._send(pid, signal.SIGINT)
        deadline = time.monotonic() + _LONGEST_END_SEC
        while any(map(self._is_running, self._pids)) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in self._pids:
            self._send(pid, signal.SIGKILL)
        self._pids = []
        folder, self._folder = self._folder, None
        if folder is None:
            return
        windows: dict[int, StackWindow] = {}
        try:
            for name in ("all", "computing"):
                self._read(folder / name, windows)
        except (OSError, DocumentError) as error:
            _log.warning("The job's stacks are not in its profile: %s", error)
            windows = {}
        self._found = [window.as_raw() for window in windows.values()]
        shutil.rmtree(folder, ignore_errors=True)

    def collect(self) -> None:
        """Do nothing: py-spy has sampled the other processes, too."""

    def list_stacks(self) -> list[RawStacks]:
        """Return the stacks by wall time and those by CPU time, after `end`; empty before it."""
        return self._found

    def _is_running(self, pid: int) -> bool:
        """Return whether a process is still our py-spy: a PID may be given again."""
        try:
            return str(self._folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def _send(self, pid: int, number: int) -> None:
        if self._is_running(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _read(self, path: Path, windows: dict[int, StackWindow]) -> None:
        """Add what one py-spy has written to the windows of the processes.

        Raises:
            DocumentError: When it has written nothing, or something else.
            OSError: When the file cannot be read.
        """
        if not path.exists():
            said = path.with_suffix(".log").read_text("utf-8", "replace").strip().splitlines()
            causes = [line for line in said if "denied" in line.lower()] or said or ["no message"]
            raise DocumentError(
                f"py-spy could not read the process ({causes[-1].strip()[:200]}). It needs the "
                "right to trace it (CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0) and an "
                "interpreter with symbols; MLFLOW_PERF_PROFILE_ENGINE=own needs neither."
            )
        stays = list(read_trace(path.read_bytes()))
        main = os.getpid(), threading.main_thread().ident
        if self._is_command:
            # The first that is not this process is the command.
            stays = [stay for stay in stays if stay[0] != os.getpid()]
            main = min(stays, key=lambda stay: stay[2], default=main)[:2]
        for pid, thread, begin, seconds, functions in stays:
            if pid == os.getpid() and thread in self._ours:
                continue
            root = MAIN_THREAD if (pid, thread) == main else CHILD_PROCESSES
            root = OTHER_THREADS if root == CHILD_PROCESSES and pid == main[0] else root
            window = windows.setdefault(pid, StackWindow(self._rate_hz))
            # A profile can be cut at any bucket.
            parts = min(_MOST_PARTS, max(1, math.ceil(seconds / FINEST_SEC)))
            part_sec = seconds / parts
            wall, cpu = (part_sec, 0.0) if path.name == "all" else (0.0, part_sec)
            sample = Sample(root, functions[-1].line if functions else 0, functions)
            for i in range(parts):
                at = self._began + begin + (i + 0.5) * part_sec
                count = round(wall * self._rate_hz)
                window.add(sample, at, wall, cpu, count)


def _start(command: Sequence[str], log: Path) -> int:
    """Start a program that is nobody's child, and return its PID.

    The job must not find it among its children, where it may wait for all of them. It takes
    signals even where this process blocks them, and none of the terminal's.
    """
    reader, writer = os.pipe()
    with os.fdopen(reader, encoding="ascii") as output:
        try:
            shell = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", '"$@" </dev/null >"$LOG" 2>&1 & echo $!', "sh", *command],
                {**os.environ, "LOG": str(log)},
                file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)],
                setpgroup=0,
                setsigmask=(),
            )
        finally:
            os.close(writer)
        pid = int(output.read())
    with contextlib.suppress(ChildProcessError):  # the job has waited for it
        os.waitpid(shell, 0)
    return pid


def read_trace(data: bytes) -> Iterator[tuple[int, int, float, float, tuple[Function, ...]]]:
    """Yield process, thread, begin, length and functions of each stay in a stack.

    Args:
        data: A file of py-spy in Chrome's trace format; its times are seconds since its start.

    Raises:
        DocumentError: If the file holds something else.
    """
    names = FrameNames()
    threads: dict[tuple[int, int], tuple[float, list[Function | None]]] = {}
    try:
        for event in json.loads(data):
            pid, thread, at = int(event["pid"]), int(event["tid"]), float(event["ts"]) / 1e6
            since, frames = threads.get((pid, thread), (at, []))
            if at > since and frames:
                known = (one for one in frames if one is not None)
                # A function that calls itself at once is there once.
                yield pid, thread, since, at - since, tuple(one for one, _ in groupby(known))
            threads[pid, thread] = at, frames
            place = event["args"]
            if event["ph"] == "E":
                frames.pop()
            elif place["filename"]:
                name, file, line = str(event["name"]), str(place["filename"]), int(place["line"])
                frames.append(names.name_function(name, file, line))
            else:  # the process with its command line, which may hold a secret
                frames.append(None)
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise DocumentError(f"py-spy's file is damaged, or is another one's: {error!r}.") from None
