"""Finalizers of our calls, which leave the job's exit handlers in their order.

The first `weakref.finalize` of a process registers an exit handler that calls all of them. Were it
one of MLflow's, made in a call of ours, the job's own would be called after the handlers that the
job has registered since, and not before them.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any

_REGISTERED = "_registered_with_atexit"  # what Python asks and sets, each time one is made


def register_later(is_own_call: Callable[[], bool]) -> None:
    """Let no finalizer that a call of ours makes be the one that registers the exit handler.

    The job's first one does. If it makes none, ours are called at the exit all the same.
    """
    finalize: Any = weakref.finalize
    if vars(finalize).get(_REGISTERED) is not False:
        return

    @atexit.register
    def call_left() -> None:
        if isinstance(vars(finalize)[_REGISTERED], property):
            finalize._exitfunc()  # noqa: SLF001 - what Python itself registers

    # Python sets it on the class, in the place of this property.
    setattr(finalize, _REGISTERED, property(lambda _: is_own_call()))
