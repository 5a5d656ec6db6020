"""Short turns of the interpreter's lock, while a thread of the job waits for one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlflow_perf.core.originals import sys

# The sampler of stacks sets the short one too, and takes it for nobody else's.
_USUAL_SEC, _QUICK_SEC, _ROUNDED_SEC = 0.005, 1.03e-4, 1.5e-6


@contextmanager
def quick_turns() -> Iterator[None]:
    """Let a thread that asks for the lock have it after 0.1 ms, and not after 5 ms.

    Importing MLflow reads thousands of files, and asks for the lock after each read: beside a
    thread of the job that computes it would take five times as long. An interval that the job has
    set stays.
    """
    is_usual = abs(sys.getswitchinterval() - _USUAL_SEC) < _ROUNDED_SEC
    if is_usual:
        sys.setswitchinterval(_QUICK_SEC)
    try:
        yield
    finally:
        if is_usual and abs(sys.getswitchinterval() - _QUICK_SEC) < _ROUNDED_SEC:
            sys.setswitchinterval(_USUAL_SEC)
