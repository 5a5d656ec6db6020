"""Keeps the exit status of a process that Ctrl-C ended.

Python notes that an unhandled `KeyboardInterrupt` ended the program, and at its end dies of SIGINT,
so that a shell knows. Any text that is executed as code meanwhile clears the note, and importing
MLflow executes some: the process would end with 1 (`run_eval_code_obj` in CPython's `pythonrun.c`).
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import suppress


def at_exit(work: Callable[[], None]) -> None:
    """Do work of ours at the interpreter's exit; the note is renewed after all of it."""
    atexit.register(work)


def _renew_interrupt_flag() -> None:
    """Note again that Ctrl-C ended the program, if it did."""
    kind, traceback = getattr(sys, "last_type", None), getattr(sys, "last_traceback", None)
    if kind is not KeyboardInterrupt or traceback is None:  # for a subclass, Python ends with 1
        return
    # Shells that survive Ctrl-C set these values as well: their traceback begins below a caller.
    if traceback.tb_frame.f_back is None and not hasattr(sys, "ps1"):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 - only code from text sets the note


# The exit runs first what was registered last: this comes after all that `at_exit` registers.
atexit.register(_renew_interrupt_flag)
