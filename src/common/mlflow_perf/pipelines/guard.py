"""Start the guard of a step's processes: it writes their logs, and outlives this process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PROGRAM = Path(__file__).with_name("step_guard.py")
_LOGGED_SEC = 10.0  # for what is still in a pipe
_STOP_TRIES = 3  # somebody may end it meanwhile
# Four times the usual one: a burst of output holds up no process, and Node.js loses what is not in
# the pipe when it ends.
_PIPE_BYTES = 262_144
END_BYTES = 65_536
_NEW_LOG = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """The guard of a step's processes; see `step_guard`.

    Args:
        logs: The log file of each process; they are emptied.
        grace_sec: Time between SIGTERM and SIGKILL, for processes that are to end.
        mark: A variable that only these processes have, as `NAME=value`; empty for none.

    Attributes:
        ends: Each log → the last `END_BYTES` of it, once all has ended. The file at its path may be
            another one by then, or a named pipe.

    Raises:
        OSError: A log could not be made, or no process could be started.
    """

    def __init__(self, logs: Sequence[Path], grace_sec: float, mark: str = "") -> None:
        self.ends: dict[Path, bytes] = {}
        self._logs = logs
        self._grace_sec, self._mark = grace_sec, mark
        self._groups: list[int] = []
        self._sources: list[int] = []
        self._targets: list[int] = []
        self._sinks: dict[Path, int] = {}
        try:
            for log in logs:
                self._targets.append(os.open(log, _NEW_LOG, 0o666))
                source, self._sinks[log] = os.pipe()
                self._sources.append(source)
                with suppress(OSError):  # this user has too many
                    fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._process = self._start()
        except BaseException:
            self._close()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        """Start it; that this process has the pipes open as well allows to start another one."""
        pairs = [f"{a}:{b}" for a, b in zip(self._sources, self._targets, strict=True)]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _PROGRAM, str(self._grace_sec), self._mark, *pairs],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(*self._sources, *self._targets),
            # Alone, so that no signal for this process or its terminal ends it.
            start_new_session=True,
        )
        self._tell(process, *self._groups)
        return process

    @staticmethod
    def _tell(process: subprocess.Popen[bytes], *lines: object) -> None:
        assert process.stdin is not None
        with suppress(OSError):  # somebody has ended it
            os.write(process.stdin.fileno(), "".join(f"{line}\n" for line in lines).encode())

    def start_process(
        self, command: Sequence[str], *, log: Path, folder: Path, environ: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process that the guard ends when this one is killed.

        Args:
            command: Program and arguments.
            log: Its log, one of `logs`.
            folder: Folder to run in.
            environ: Its variables.
        """
        sink = self._sinks.pop(log)
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                # In a session of its own, it gets no Ctrl-C of the terminal before the runner does.
                start_new_session=True,
            )
        finally:
            os.close(sink)
        self._groups.append(process.pid)
        self._tell(self._process, process.pid)
        return process

    def keep(self) -> None:
        """Start it again if somebody has ended it: nobody else reads what the processes write."""
        if self._process.poll() is not None:
            self._hang_up()
            self._process = self._start()

    def end(self) -> None:
        """Tell it that all has ended, and wait until the logs are complete."""
        self.keep()
        self._tell(self._process, "end")
        self._wait(_LOGGED_SEC)
        self._finish()

    def stop(self) -> None:
        """Let it end the processes and all that they have started, and complete the logs."""
        for _ in range(_STOP_TRIES):
            self.keep()
            if self._wait(2 * self._grace_sec + _LOGGED_SEC) in (0, None):
                break
        self._finish()

    def _wait(self, most_sec: float) -> int | None:
        """Say that no more is to come; return its exit code, None if it takes longer."""
        self._hang_up()
        try:
            return self._process.wait(most_sec)
        except subprocess.TimeoutExpired:  # the disk is slow, or a process cannot be ended
            return None

    def _finish(self) -> None:
        for log, target in zip(self._logs, self._targets, strict=True):
            begin = max(0, os.fstat(target).st_size - END_BYTES)
            self.ends[log] = os.pread(target, END_BYTES, begin)
        self._close()

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _close(self) -> None:
        for number in (*self._sources, *self._targets, *self._sinks.values()):
            os.close(number)
