"""Ctrl-C while a command of ours starts: until it can act on it, the signal ends the process."""

from __future__ import annotations

import os
import signal

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
