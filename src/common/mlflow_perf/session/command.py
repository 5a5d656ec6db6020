"""A command of any language, recorded from outside as a process tree of its own.

The command runs as if it were alone: its output, input, terminal and exit code are its own, and the
signals that this process gets are passed on to it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mlflow_perf.core.settings import Settings
from mlflow_perf.node.exit_cause import new_oom_kills, oom_counts, signal_name
from mlflow_perf.session.recording import Outcome, Recording

__all__ = [
    "NOT_EXECUTABLE",
    "NOT_FOUND",
    "check_command",
    "judge_end",
    "name_component",
    "run_command",
]

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # the exit codes of every shell

_log = logging.getLogger(__name__)
_FORWARDED = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "XCPU", "PWR")
# These signals are the command's own faults; all others come from outside.
_CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP"}
_ENDING = {"SIGHUP", "SIGINT", "SIGKILL", "SIGTERM"}
_LOOK_EVERY_SEC = 1.0


def check_command(argv: Sequence[str]) -> int:
    """Return the exit code of a command that cannot be started; 0 if it probably can."""
    if shutil.which(argv[0]) is not None:
        return 0
    return NOT_EXECUTABLE if os.sep in argv[0] and Path(argv[0]).exists() else NOT_FOUND


def name_component(argv: Sequence[str]) -> str:
    """Return a name for a command: that of the script which it runs, else its own."""
    words = [argv[0], *(word for word in argv[1:] if not word.startswith("-"))]
    script = next((w for w in words[1:2] if w.endswith((".py", ".sh", ".R", ".jl", ".pl"))), None)
    return Path(script or argv[0]).stem or "command"


def judge_end(code: int, *, ended_by: int, received: Sequence[int], oom_kills: int) -> Outcome:
    """Return how a command ended.

    Args:
        code: Its exit code; 128 + n for signal n.
        ended_by: The signal that ended it; 0 for none.
        received: The signals that this process got meanwhile.
        oom_kills: How many processes the OOM killer ended in its cgroup.
    """
    # A shell between us and the process that was killed reports it as 128 + n.
    number = ended_by or (code - 128 if 128 < code < 192 else 0)
    name = signal_name(number) if number else ""
    if oom_kills and (number == getattr(signal, "SIGKILL", 9) or code != 0):
        cause = "out of memory: the kernel's OOM killer ended a process of the command (SIGKILL)"
        return Outcome("KILLED" if number else "FAILED", cause)
    asked = [signal_name(n) for n in received if signal_name(n) in _ENDING]
    if asked and (code != 0 or asked[0] != "SIGINT"):
        return Outcome("KILLED", f"signal {asked[0]}")
    if name in _ENDING or (ended_by and name not in _CRASHES):
        return Outcome("KILLED", f"signal {name}")
    if number and name in _CRASHES:
        return Outcome("FAILED", f"signal {name}")
    return Outcome("FAILED", f"exit code {code}") if code else Outcome()


def run_command(argv: Sequence[str], name: str, settings: Settings) -> int:
    """Run a command to its end, report it, and return its exit code.

    Args:
        argv: The command and its arguments.
        name: The component.
        settings: The settings.

    Raises:
        MlflowPerfError: When a setting cannot be used; the command is not started then.
    """
    recording = Recording(name, settings)
    recording.gather()
    counts = oom_counts()
    can_hold = all(hasattr(os, name) for name in ("fork", "waitid"))
    can_hold = can_hold and hasattr(signal, "sigtimedwait")
    child: _HeldChild | _PlainChild = _HeldChild(argv) if can_hold else _PlainChild(argv)

    def look() -> None:
        for file, count in oom_counts(child.pid).items():
            counts.setdefault(file, count)

    try:
        _try_step(lambda: recording.start(wait=False, root_pid=child.pid))
    finally:
        child.release()
    look()
    code, ended_by = child.wait(look)
    _try_step(recording.stop)
    child.reap()
    end = judge_end(
        code, ended_by=ended_by, received=child.received, oom_kills=new_oom_kills(counts)
    )
    with contextlib.suppress(KeyboardInterrupt):  # the report is kept, and a message has said so
        child.allow_interrupt()
        _try_step(lambda: recording.finish(end))
        # Elsewhere than at a terminal, all output is the command's own.
        if recording.sent and sys.stderr.isatty():
            sys.stderr.write(
                f"mlflow-perf: reported; to see it: mlflow-perf show {recording.run.run_id}\n"
            )
    return code


def _try_step(step: Callable[[], object]) -> None:
    """Do one step of a recording; an error costs the report, not the command."""
    try:
        step()
    except Exception:  # noqa: BLE001 - no error of ours reaches the command
        _log.warning("The command is not reported.", exc_info=True)


class _HeldChild:
    """A command that waits between fork and exec, so that it is watched from its first moment.

    Args:
        argv: The command.

    Attributes:
        pid: Its process id.
        received: The signals that this process got.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.received: list[int] = []
        self._failed: tuple[int, int] | None = None
        names = (f"SIG{name}" for name in _FORWARDED)
        self._signals = {getattr(signal, n) for n in names if hasattr(signal, n)}
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # They are blocked in this thread and in every later one; `wait` fetches them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*self._signals, signal.SIGCHLD})
        held, self._go = os.pipe()
        self._said, said = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            _become(argv, mask, held, said)
        os.close(held)
        os.close(said)

    def release(self) -> None:
        """Start the command."""
        os.write(self._go, b"!")
        os.close(self._go)
        said = os.read(self._said, 16)  # empty once the command has replaced the child
        os.close(self._said)
        if said:
            number = int(said)
            code = NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE
            self._failed = code, 0
            sys.stderr.write(f"mlflow-perf: {os.strerror(number)}\n")

    def wait(self, look: Callable[[], object]) -> tuple[int, int]:
        """Return exit code and ending signal once the command has ended; it is not reaped yet.

        Args:
            look: Called about every second meanwhile.
        """
        wanted = {*self._signals, signal.SIGCHLD}
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while (ended := os.waitid(os.P_PID, self.pid, flags)) is None:
            came = signal.sigtimedwait(wanted, _LOOK_EVERY_SEC)
            if came is None:
                look()
            elif came.si_signo != signal.SIGCHLD:
                self.received.append(came.si_signo)
                # What the kernel sends, as for a key at the terminal, it sent to the command too.
                if came.si_code <= 0:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(self.pid, came.si_signo)
        if self._failed is not None:
            return self._failed
        if ended.si_code == os.CLD_EXITED:
            return ended.si_status, 0
        return 128 + ended.si_status, ended.si_status

    def reap(self) -> None:
        """Collect the command's exit status, so that the kernel can forget it."""
        os.waitpid(self.pid, 0)

    def allow_interrupt(self) -> None:
        """Let a new Ctrl-C end our own work; those meant for the command are dropped."""
        while signal.sigtimedwait(self._signals, 0) is not None:
            pass
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _become(argv: Sequence[str], mask: Any, held: int, said: int) -> NoReturn:
    """Turn this forked child into the command, once it may start.

    Args:
        argv: The command.
        mask: The signals that were blocked before the fork.
        held: A pipe that says when to start.
        said: A pipe that takes the number of the error when the command cannot be started.
    """
    try:
        if os.read(held, 1):
            # Python ignores these two signals; the command gets their defaults.
            for name in ("SIGPIPE", "SIGXFSZ"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                os.execvp(argv[0], list(argv))  # noqa: S606 - the command gets no shell
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
            # Every shell runs a script without a #! line itself.
            script = shutil.which(argv[0]) or argv[0]
            os.execv("/bin/sh", ["/bin/sh", script, *argv[1:]])  # noqa: S606 - as above
    except OSError as error:
        os.write(said, str(error.errno or errno.EIO).encode())
    finally:
        os._exit(NOT_FOUND)


class _PlainChild:
    """A command on a system where it cannot be held back: Windows and macOS.

    Args:
        argv: The command.

    Attributes:
        pid: Its process id.
        received: The signals that this process got.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.received: list[int] = []
        self._process = subprocess.Popen(list(argv))
        self.pid = self._process.pid
        for name in ("TERM", "HUP", "USR1", "USR2"):
            if hasattr(signal, f"SIG{name}"):
                signal.signal(getattr(signal, f"SIG{name}"), self._forward)
        # The terminal sends SIGINT to both processes.
        signal.signal(signal.SIGINT, lambda number, _: self.received.append(number))

    def _forward(self, number: int, _: Any) -> None:
        self.received.append(number)
        self._process.send_signal(number)

    def release(self) -> None:
        """Do nothing, because the command runs already."""

    def wait(self, look: Callable[[], object]) -> tuple[int, int]:
        """Return exit code and ending signal once the command has ended."""
        while True:
            try:
                code = self._process.wait(_LOOK_EVERY_SEC)
            except subprocess.TimeoutExpired:
                look()
            else:
                return (128 - code, -code) if code < 0 else (code, 0)

    def reap(self) -> None:
        """Do nothing, because `wait` has collected the exit status."""

    def allow_interrupt(self) -> None:
        """Let Ctrl-C end our own work."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
