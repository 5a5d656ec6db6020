"""Keeps the exit status of a process that Ctrl-C ended.

Python notes that an unhandled `KeyboardInterrupt` ended the program, and at its end dies of SIGINT,
so that a shell knows. Any text that is executed as code meanwhile clears the note, and importing
MLflow executes some: the process would end with 1 (`run_eval_code_obj` in CPython's `pythonrun.c`).
"""

from __future__ import annotations

import sys
from contextlib import suppress


def renew_interrupt_flag() -> None:
    """Note again that Ctrl-C ended the program, if it did.

    Anything of ours that works at the interpreter's exit calls this last.
    """
    kind, traceback = getattr(sys, "last_type", None), getattr(sys, "last_traceback", None)
    if not (isinstance(kind, type) and issubclass(kind, KeyboardInterrupt)) or traceback is None:
        return
    # Shells that survive Ctrl-C set these values as well: their traceback begins below a caller.
    if traceback.tb_frame.f_back is None and not hasattr(sys, "ps1"):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 - only code from text sets the note
