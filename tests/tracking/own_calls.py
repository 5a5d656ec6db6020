"""Calls as those that we make of MLflow: in a thread of ours, or in a process that is new."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.tracking.shared_libraries import own_call


def call_as_own(what: Callable[[], Any]) -> Any:
    """Do something in an own call, in a thread of ours."""

    def call() -> Any:
        with own_call():
            return what()

    return BackgroundCall(call, name="test").result(30)


def run_alone(code: str) -> tuple[int, str, str]:
    """Run code in a process of its own; return its exit code and what it printed and logged."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr
