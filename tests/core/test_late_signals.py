"""A signal that comes while Python takes its modules apart, with MLflow loaded for us or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such signals")

_JOB = """
import os, signal, sys, time
import mlflow_perf
signal.signal(signal.{name}, lambda *_: None)
if "{name}" == "SIGALRM":
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
{block}

class Late:
    def __del__(self, kill=os.kill, wait=time.sleep, pid=os.getpid(), number=signal.{name}):
        if number == {alarm}:
            wait(0.5)
        else:
            kill(pid, number)

late = Late()
"""
_REPORT = "with mlflow_perf.report(): pass"


@pytest.mark.parametrize(
    ("block", "name", "code"),
    [
        ("", "SIGALRM", -signal.SIGALRM),  # as without us: Python has given up its handlers
        (_REPORT, "SIGALRM", 0),
        (_REPORT, "SIGUSR1", 0),
        (_REPORT, "SIGTERM", -signal.SIGTERM),  # somebody wants it to end
        (f"import mlflow\n{_REPORT}", "SIGALRM", -signal.SIGALRM),  # lasts as long without us
    ],
)
def test_only_while_our_mlflow_is_torn_down(
    tmp_path: Path, block: str, name: str, code: int
) -> None:
    """What the job handles does not end it because its end lasts longer with us."""
    environ = os.environ | {
        "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true",
    }  # fmt: skip
    job = _JOB.format(block=block, name=name, alarm=int(signal.SIGALRM))
    done = subprocess.run([sys.executable, "-c", job], env=environ, check=False, cwd=tmp_path)
    assert done.returncode == code


def test_what_the_job_does_last_may_set_an_alarm(tmp_path: Path) -> None:
    """Its exit handler is older than ours, and an alarm cuts its cleanup off."""
    job = """
import atexit, signal, time

def ring(*_):
    raise TimeoutError

def clean_up():
    signal.alarm(1)
    try:
        time.sleep(60)
    except TimeoutError:
        print("cut off")

atexit.register(clean_up)
signal.signal(signal.SIGALRM, ring)
import mlflow_perf
with mlflow_perf.report():
    pass
"""
    environ = os.environ | {
        "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", job],
        env=environ, check=True, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "cut off\n"
