"""Passes a signal from the interpreter's own handler to the thread that waits for it."""

from __future__ import annotations

import contextlib
import stat
import struct

from mlflow_perf.core.clock import read_monotonic
from mlflow_perf.core.descriptors import OwnDescriptor
from mlflow_perf.core.originals import os

REST_SEC = 0.05
_AT_ONCE = 20.0
_PROCESS_ID = struct.Struct("i")


class Pace:
    """Limits how often a thread wakes up where a timer sends a signal per millisecond.

    Attributes:
        loop_rest_sec: The rest where an event loop waits for signals: it wakes up for each, too.
    """

    loop_rest_sec = 0.002

    def __init__(self) -> None:
        self._left, self._looked = _AT_ONCE, read_monotonic()

    def must_rest(self) -> bool:
        """Return whether the thread, which has woken up, rests for a moment now."""
        before, self._looked = self._looked, read_monotonic()
        left = min(_AT_ONCE, self._left + (self._looked - before) / REST_SEC)
        self._left = max(left - 1.0, -1.0)
        return self._left < 0


def identify(number: int) -> tuple[int, os.stat_result] | None:
    """Return the descriptor of an event loop with its file; None if it is none, or of no loop."""
    if number < 0:
        return None
    facts = os.fstat(number)
    # An event loop uses a socket or a pipe.
    return (number, facts) if stat.S_ISSOCK(facts.st_mode) or stat.S_ISFIFO(facts.st_mode) else None


class SignalChannel:
    """Takes the numbers of this process's signals from the interpreter to the watch's thread.

    The kernel adds the writer's process id to each. A child of a native `fork()`, as C libraries
    make it, has our end of the channel too, and its signals are not ours.

    Attributes:
        writer: The end for the interpreter.

    Raises:
        OSError: When the process has no more descriptors.
    """

    def __init__(self) -> None:
        # Not `socket`, which gevent and eventlet replace.
        import _socket

        reading, writing = _socket.socketpair()
        if hasattr(_socket, "SO_PASSCRED"):  # Linux
            reading.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        # Copies: wherever a signal handler of the job raises, each descriptor has an owner.
        self.writer = OwnDescriptor(os.dup, writing.fileno())
        writing.close()
        os.set_blocking(self.writer.number, False)
        self._reader = OwnDescriptor(os.dup, reading.fileno())
        reading.close()
        self._socket = _socket.socket(fileno=self._reader.number)

    def read(self, timeout_sec: float | None = None) -> bytes | None:
        """Wait for signals of this process and return their numbers; nothing once it is closed.

        Args:
            timeout_sec: Most seconds to wait; then it returns None.
        """
        while True:
            try:
                if not self._reader.is_ours():
                    return b""
                self._socket.settimeout(timeout_sec)
                data, notes, _, _ = self._socket.recvmsg(4096, 64)
            except TimeoutError:
                return None
            except OSError:
                return b""
            senders = [_PROCESS_ID.unpack_from(note)[0] for _, _, note in notes]
            if not data or not senders or senders[0] == os.getpid():
                return data

    def write(self, number: int) -> None:
        """Write the number of a signal, or a message to the thread; never blocks."""
        if self.writer.is_ours():
            with contextlib.suppress(OSError):
                os.write(self.writer.number, bytes([number]))

    def close(self) -> None:
        """Close the ends that are still ours."""
        self.writer.close()
        self._socket.detach()
        self._reader.close()
