"""A child process that is measured from its first moment and ends with its parent.

Every signal that this process gets is passed on to the command, unless the command got it too. If
this process is killed, the kernel kills the command too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from mlflow_perf.session.signal_witness import Sent, SignalWitness

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # the exit codes of every shell

# A fault of this process itself, as SIGSEGV, ends it although it is blocked.
_NOT_PASSED_ON = ("KILL", "STOP", "CHLD")
_JOB_CONTROL = ("TSTP", "TTIN", "TTOU")
_ENDING = ("HUP", "INT", "QUIT", "TERM")
_LOOK_EVERY_SEC = 1.0
_STOP_WITHIN_SEC = 10.0  # a command may restore its screen first, or ignore the request
# A service manager sends a signal to one process after the other; `timeout`, to its child and then
# to the group.
_GRACE_SEC = 0.02
_MOST_AT_ONCE = 64
_PR_SET_PDEATHSIG = 1
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "busybox")
# systemd names the process that may take its sockets, or owes it a sign of life.
_FOR_ONE_PROCESS = ("LISTEN_PID", "WATCHDOG_PID")
_CALLER = os.getppid()  # the forked child has another parent
_WNOTHREAD = 0x20000000  # of Linux: no child that another thread of ours has started, and awaits


class _Signal(ctypes.Structure):
    """The beginning of Linux's `siginfo_t`, with room for the rest."""

    number: int
    code: int
    pid: int
    _fields_: ClassVar = [
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        # The union behind it holds pointers.
        *([("gap", ctypes.c_int)] if ctypes.sizeof(ctypes.c_void_p) == 8 else []),
        ("pid", ctypes.c_int),
        ("rest", ctypes.c_int * 32),
    ]


class _Seconds(ctypes.Structure):
    _fields_: ClassVar = [("whole", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def _await_signal(numbers: Set[int], timeout_sec: float) -> _Signal | None:
    """Wait for one of these signals, which are blocked; None after the time, or after a stop.

    `signal.sigtimedwait` returns a signal from uninitialised memory if this process was stopped and
    goes on when the time is over.
    """
    libc, wanted, came = ctypes.CDLL(None), (ctypes.c_ulong * 16)(), _Signal()
    libc.sigemptyset(wanted)
    for number in numbers:
        libc.sigaddset(wanted, number)
    whole, part = divmod(timeout_sec, 1)
    limit = _Seconds(int(whole), int(part * 1e9))
    number = libc.sigtimedwait(wanted, ctypes.byref(came), ctypes.byref(limit))
    return came if number > 0 else None


def _numbers(names: Sequence[str]) -> set[int]:
    return {getattr(signal, f"SIG{name}") for name in names if hasattr(signal, f"SIG{name}")}


class HeldChild:
    """A command that waits between fork and exec, so that it is watched from its first moment.

    Args:
        argv: The command.

    Attributes:
        pid: Its process id.
        received: The signals that this process got.
        unseen_sec: How long before the end was seen this process had last looked, after `wait`.

    Raises:
        OSError: When this process cannot fork; nothing has changed then.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.received: list[int] = []
        self.unseen_sec = 0.0
        self._program = argv[0]
        self._failed: tuple[int, int] | None = None
        self._is_stopped = self._is_hung_up = False
        self._stop_asked_at = -_STOP_WITHIN_SEC
        self._held: list[tuple[float, Sent]] = []  # when to pass it on
        self._to_group: list[tuple[float, Sent]] = []  # when it is forgotten
        self._passed_on = signal.valid_signals() - _numbers(_NOT_PASSED_ON)
        libc, parent = ctypes.CDLL(None), os.getpid()
        held, self._go = os.pipe()
        self._said, said = os.pipe()
        old = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # They are blocked in this thread and in every later one; `wait` fetches them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*self._passed_on, signal.SIGCHLD})
        try:
            self.pid = os.fork()
        except OSError:
            for end in (held, self._go, self._said, said):
                os.close(end)
            signal.signal(signal.SIGCHLD, old)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise
        if self.pid == 0:
            os.close(self._go)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            # A parent that was killed before that call sends no signal.
            if os.getppid() != parent:
                os._exit(NOT_FOUND)
            if old == signal.SIG_IGN:
                signal.signal(signal.SIGCHLD, old)
            _become(argv, mask, held, said)
        os.close(held)
        os.close(said)
        # After the command, so that it takes no process from it.
        self._witness = SignalWitness(argv)

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
            why = os.strerror(number)
            if code == NOT_FOUND and shutil.which(self._program):
                why = "the interpreter or loader that it names is missing"
            sys.stderr.write(f"mlflow-perf: {self._program}: {why}\n")

    def wait(self, look: Callable[[], object]) -> tuple[int, int]:
        """Return exit code and ending signal once the command has ended; it is not reaped yet.

        Args:
            look: Called about every second meanwhile.
        """
        flags, looked = os.WEXITED | os.WNOWAIT | os.WNOHANG, time.monotonic()
        while (ended := os.waitid(os.P_PID, self.pid, flags)) is None:
            looked = time.monotonic()
            self._stop_with_command()
            if not self._pass_on(_LOOK_EVERY_SEC):
                look()
        self.unseen_sec = time.monotonic() - looked
        if self._is_hung_up:
            # The kernel tells the others at the end of the session's first process.
            os.killpg(0, signal.SIGHUP)
        if self._failed is not None:
            return self._failed
        if ended.si_code == os.CLD_EXITED:
            return ended.si_status, 0
        return 128 + ended.si_status, ended.si_status

    def _stop_with_command(self) -> None:
        """Stop too if job control has stopped the command, so that the shell sees it.

        Whoever stops the command alone lets it alone go on; nothing would wake this process then.
        """
        changes = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
        try:
            changed = os.waitid(os.P_PID, self.pid, changes)
        except ChildProcessError:  # it has ended since the last look: it can stop no more
            return
        if changed is not None:
            self._is_stopped = changed.si_code == os.CLD_STOPPED
        asked = time.monotonic() < self._stop_asked_at + _STOP_WITHIN_SEC
        if not (self._is_stopped and (asked or _is_awaited_by_shell(self.pid))):
            return
        # A stop would cancel what tells both to go on.
        if signal.SIGCONT not in signal.sigpending():
            os.kill(os.getpid(), signal.SIGSTOP)
            self._forget_stop()

    def _forget_stop(self) -> None:
        self._is_stopped, self._stop_asked_at = False, -_STOP_WITHIN_SEC

    def wait_while(self, is_busy: Callable[[], bool]) -> None:
        """Wait after the command's end until others have ended too, or a signal asks to end.

        Args:
            is_busy: Whether to go on waiting.
        """
        self._pass_on(_GRACE_SEC)  # the signal that has ended the command may come only now
        before, ending = len(self.received), _numbers(_ENDING)
        # Not SIGCONT, which Slurm and systemd send with SIGTERM, nor SIGWINCH.
        while ending.isdisjoint(self.received[before:]) and is_busy():
            self._pass_on(0.1)

    def _reap_orphans(self) -> None:
        """Reap what became our child when its parent ended, as the first process of a container."""
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT | _WNOTHREAD
        with contextlib.suppress(OSError):
            while (orphan := os.waitid(os.P_ALL, 0, ended)) is not None:
                if orphan.si_pid in (self.pid, self._witness.pid):
                    return
                os.waitpid(orphan.si_pid, 0)

    def _pass_on(self, timeout_sec: float) -> bool:
        """Wait for signals and pass them on; return whether one came in time, or is held."""
        self._reap_orphans()
        if self._held:
            timeout_sec = max(0.0, min(due for due, _ in self._held) - time.monotonic())
        wanted = {*self._passed_on, signal.SIGCHLD}
        came, now = _await_signal(wanted, timeout_sec), time.monotonic()
        is_busy = came is not None or bool(self._held)
        self._to_group = [one for one in self._to_group if one[0] > now]
        for _ in range(_MOST_AT_ONCE):
            if came is not None:
                self._note(came)
            # Also when none came: what only others of the group got is no later signal's.
            self._ask_witness()
            # What the witness has got, we have got now too.
            if (came := _await_signal(wanted, 0)) is None:
                break
        if came is not None:
            self._note(came)
            self._ask_witness()
        self._settle()
        return is_busy

    def _note(self, came: _Signal) -> None:
        """Take note of a signal, and hold it if the command may not have got it."""
        # A write of ours to a closed pipe, or beyond the limit of a file's size, is not its fault.
        if came.number == signal.SIGCHLD or came.pid == os.getpid():
            return
        # The command means its parent (`kill -USR1 $PPID`), or its group: itself it can reach.
        job_control = _numbers((*_JOB_CONTROL, "CONT"))
        if came.pid == self.pid and came.number not in job_control:
            return
        # Under nohup SIGHUP comes too, and asks nobody to end.
        if signal.getsignal(came.number) is not signal.SIG_IGN:
            self.received.append(came.number)
        if came.number in _numbers(_JOB_CONTROL):
            self._stop_asked_at = time.monotonic()
        elif came.number == signal.SIGCONT:
            self._forget_stop()
        # What the kernel sends, as for a key at the terminal, it sent to the command too. Only that
        # a terminal is gone it tells just the first process of the terminal's session, and that its
        # time is over the process that had set an alarm before it became this one.
        hung_up = came.code > 0 and came.number == signal.SIGHUP and os.getsid(0) == os.getpid()
        self._is_hung_up |= hung_up
        if came.code <= 0 or hung_up or came.number == signal.SIGALRM:
            # Stops and what ends them keep their order.
            at_once = came.number in job_control
            due = time.monotonic() + (0 if at_once else _GRACE_SEC)
            self._held.append((due, (came.number, came.pid)))

    def _ask_witness(self) -> None:
        """Learn which signals were for the whole group; without a witness hold none back."""
        said, now = self._witness.ask(), time.monotonic()
        if said is None:
            self._held = [(now, sent) for _, sent in self._held]
            return
        self._to_group += [(now + _GRACE_SEC, sent) for sent in said]

    def _settle(self) -> None:
        """Pass on what is due and was for this process alone."""
        now, waiting, sent_to_group = time.monotonic(), [], [sent for _, sent in self._to_group]
        with contextlib.suppress(OSError):
            # The first of a group cannot leave it: in our place the command would still be there.
            if os.getpgrp() == os.getpid() != os.getpgid(self.pid):
                sent_to_group = []
        for due, sent in self._held:
            if sent in sent_to_group:
                # The kernel merges two of one number, but none of those of real time.
                if sent[0] >= signal.SIGRTMIN:
                    sent_to_group.remove(sent)
            elif due > now:
                waiting.append((due, sent))
            else:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self.pid, sent[0])
        self._held = waiting

    def reap(self) -> None:
        """Collect the command's exit status, so that the kernel can forget it."""
        self._witness.end()
        os.waitpid(self.pid, 0)

    def allow_interrupt(self) -> None:
        """Let a new Ctrl-C end our own work; those meant for the command are dropped."""
        while signal.sigtimedwait(self._passed_on, 0) is not None:
            pass
        if callable(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _is_awaited_by_shell(pid: int) -> bool:
    """Return whether a shell with job control waits for this process, or its child, at a terminal.

    Args:
        pid: The child, which may have made itself the terminal's foreground.
    """
    parent = os.getppid()
    with contextlib.suppress(OSError), Path("/dev/tty").open("rb", buffering=0) as terminal:
        if os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp():
            return os.tcgetpgrp(terminal.fileno()) in {os.getpgrp(), os.getpgid(pid)}
    return False


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
            # What has come meanwhile acts on the command, and not on handlers of ours.
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for name in _FOR_ONE_PROCESS:
                if os.environ.get(name) == str(os.getppid()):
                    os.environ[name] = str(os.getpid())
            execute(argv)
    except OSError as error:
        os.write(said, str(error.errno or errno.EIO).encode())
    finally:
        os._exit(NOT_FOUND)


def _read_ignored(caller: int) -> int:
    """Return the signals that a shell lets its commands ignore, a bit for each; 0 if unknown.

    A shell ignores SIGPIPE and SIGXFSZ only where its commands shall too. Other programs, as Python
    itself and all in Rust, ignore them without their children.
    """
    with contextlib.suppress(OSError, StopIteration):
        if Path(f"/proc/{caller}/exe").readlink().name in _SHELLS:
            lines = Path(f"/proc/{caller}/status").read_text("utf-8", "replace").splitlines()
            return int(next(line for line in lines if line.startswith("SigIgn:")).split()[1], 16)
    return 0


def execute(argv: Sequence[str]) -> NoReturn:
    """Replace this process by a command.

    Raises:
        OSError: When the command cannot be started.
    """
    # Python ignores these two signals; the command gets what this process was started with.
    ignored = _read_ignored(_CALLER)
    for number in _numbers(("PIPE", "XFSZ")):
        if not ignored >> (number - 1) & 1:
            signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606 - the command gets no shell
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # Every shell runs a script without a #! line itself.
    script = shutil.which(argv[0]) or argv[0]
    os.execv("/bin/sh", ["/bin/sh", script, *argv[1:]])  # noqa: S606 - as above
