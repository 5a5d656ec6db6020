"""Signals while a command of ours starts: until it can act on them, they end the process."""

from __future__ import annotations

import os
import signal
from typing import Any

_ENDING = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU")
ENDING: set[int] = {getattr(signal, name) for name in _ENDING if hasattr(signal, name)}
"""The signals with which a terminal, a supervisor or a batch system ends a process."""

_TOGETHER_SEC = 0.02  # `timeout` sends its signal to its child, and then again to the whole group
_is_ending = False


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process at once, without a word, unless its caller lets it be ignored.

    Python's own handler raises in the middle of an import, which prints a traceback.
    """
    global _is_ending  # noqa: PLW0603 - of the process
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # No default action of a signal ends the first process of a container.
        is_first = os.getpid() == 1
        signal.signal(signal.SIGINT, _exit if is_first else signal.SIG_DFL)
        _is_ending = True


def raise_at_interrupt() -> None:
    """Take back `end_at_interrupt`: Ctrl-C raises `KeyboardInterrupt` from now on."""
    global _is_ending  # noqa: PLW0603 - as above
    if _is_ending:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _is_ending = False


def _exit(number: int, _: object) -> None:
    os._exit(128 + number)


class RaisingSignals:
    """Lets a signal that would end this process raise `KeyboardInterrupt`, with its number.

    Its caller can take back then what it has begun. Only the first signal raises: later ones are
    blocked, because several may come together. A signal that is ignored stays so.
    """

    def __init__(self) -> None:
        self._replaced: dict[int, Any] = {}
        self._has_raised = False

    def __enter__(self) -> RaisingSignals:
        """Replace the handlers; the first process of a container has some from here on, too."""
        raise_at_interrupt()
        for number in ENDING:
            handler = signal.getsignal(number)
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                self._replaced[number] = handler
                signal.signal(number, self.end)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers; what is blocked stays so."""
        for number, handler in self._replaced.items():
            signal.signal(number, handler)

    def end(self, number: int, _: object) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: When it is the first one.
        """
        if hasattr(signal, "pthread_sigmask"):  # not on Windows
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        # Another one may have come before that.
        if not self._has_raised:
            self._has_raised = True
            raise KeyboardInterrupt(number)

    def allow_another(self) -> None:
        """Let a signal raise again, but none that came together with the first."""
        while signal.sigtimedwait(ENDING, _TOGETHER_SEC) is not None:
            pass
        self._has_raised = False
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
