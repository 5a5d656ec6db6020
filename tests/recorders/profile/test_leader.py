"""A process ends with its last thread: that is never ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

_EXIT = """
import ctypes, os, sys, time
from mlflow_perf.recorders.profile import live
live.begin(None, None)
time.sleep(0.3)
assert live._live.sampler.is_alive()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a system call of Linux")
def test_a_main_thread_that_ends_alone_ends_the_process() -> None:
    """As under `seccomp` in strict mode, which allows `exit` and not `exit_group`."""
    assert subprocess.run([sys.executable, "-c", _EXIT], check=False, timeout=60).returncode == 3
