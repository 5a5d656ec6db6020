"""A small process that gets each signal for this process's group, and none for this process alone.

The kernel does not tell a process whether a signal was for it or for its whole group. The witness
blocks every signal, so they stay pending in it until it is asked. The kernel sends a group's signal
first to the newest process; so what this process has got, the witness has got already.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mlflow_perf.core.own_cost import own_children

_NAME = b"signal-witness"  # without ours: `pkill mlflow-perf` must not reach it
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_MOST = 400  # the kernel writes an answer of 4,096 bytes at once
_HIGHEST_DESCRIPTOR = 65_536
_STOPPED_MS, _LOST_MS = 200, 2_000

Sent = tuple[int, int]
"""The number of a signal, and the process that sent it."""


class SignalWitness:
    """A forked child in the same process group; it has ended, and says nothing, if a fork fails.

    Args:
        command: The words of the command of `mlflow-perf run`, which are in its own command line.

    Attributes:
        pid: Its process id; 0 once it has ended.
    """

    def __init__(self, command: Sequence[str] = ()) -> None:
        self.pid = 0
        self._ends: list[int] = []
        parent = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            asked, ask = os.pipe()
            self._ends += asked, ask
            answers, answer = os.pipe()
            self._ends += answers, answer
            self.pid = os.fork()
            if self.pid == 0:
                _testify(parent, asked, answer, b" ".join([_NAME, *map(os.fsencode, command)]))
            own_children.add(self.pid)
            os.close(asked)
            os.close(answer)
            self._ends = [ask, answers]
        except OSError:
            self.end()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def ask(self) -> list[Sent] | None:
        """Return the signals for the group since the last question; None without a witness."""
        if not self.pid:
            return None
        ask, answer_from = self._ends
        with contextlib.suppress(OSError):
            os.write(ask, b"?")
            answers = select.poll()
            answers.register(answer_from, select.POLLIN)
            if not answers.poll(_STOPPED_MS):
                # Whoever stopped the whole group may let its members go on one by one.
                os.kill(self.pid, signal.SIGCONT)
            if answers.poll(_LOST_MS) and (answer := os.read(answer_from, 4096)):
                said = memoryview(answer).cast("i").tolist()[1:]
                sent = zip(said[::2], said[1::2], strict=True)
                return [(number, sender) for number, sender in sent if sender != os.getpid()]
        self.end()
        return None

    def end(self) -> None:
        """End the process, so that it is no zombie of whoever gets our orphans."""
        for end in self._ends:
            os.close(end)
        if self.pid:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        self.pid, self._ends = 0, []


def _testify(parent: int, asked: int, answer: int, shown: bytes) -> NoReturn:
    """Answer each question with the signals that are pending, until the parent ends."""
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # A parent that was killed before that call sends no signal.
        if os.getppid() != parent:
            os._exit(0)
        # It must hold no pipe or terminal of the job open.
        os.dup2(asked, 0)
        os.dup2(answer, 1)
        os.closerange(2, min(os.sysconf("SC_OPEN_MAX"), _HIGHEST_DESCRIPTOR))
        libc.prctl(_PR_SET_NAME, _NAME)
        # `pkill -f` compares the command line, which is that of the parent until now. What looks
        # for the command's reaches the parent, the command and this process; `mlflow-perf` does not
        # reach it.
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if 0 < start < end:
            ctypes.memmove(start, shown[: end - start - 1].ljust(end - start, b"\0"), end - start)
        while os.read(0, 1):
            said = [0]
            while len(said) < _MOST and (came := signal.sigtimedwait(signal.valid_signals(), 0)):
                said += came.si_signo, came.si_pid
            os.write(1, memoryview((ctypes.c_int * len(said))(*said)).tobytes())
    finally:
        os._exit(0)
