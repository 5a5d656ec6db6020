"""Finalizers of our calls, and the order of the job's exit handlers."""

import subprocess
import sys

import pytest

_BEGIN = """
import atexit, weakref
from mlflow_perf.tracking.shared_libraries import own_call
class Thing: pass
ours = Thing()
with own_call():
    weakref.finalize(ours, print, "ours")
atexit.register(print, "handler")
"""
_OF_JOB = """
theirs = Thing()
weakref.finalize(theirs, print, "theirs")
"""


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (_BEGIN + _OF_JOB, ["theirs", "ours", "handler"]),
        (_BEGIN, ["handler", "ours"]),
        (_OF_JOB.replace("theirs = ", "class Thing: pass\nimport weakref\ntheirs = ") + _BEGIN,
         ["handler", "ours", "theirs"]),
    ],
)  # fmt: skip
def test_a_finalizer_of_our_calls_moves_none_of_the_jobs(job: str, said: list[str]) -> None:
    """Python calls finalizers where the first one was made: before older handlers only."""
    done = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (said, "")
