"""How many filters of system calls a process has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_perf.core import seccomp
from mlflow_perf.core.seccomp import count_filters


def test_they_are_counted_as_the_kernel_says() -> None:
    """A child that adds none has as many."""
    status = Path("/proc/self/status")
    if not (status.exists() and "Seccomp_filters" in status.read_text(encoding="ascii")):
        pytest.skip("this kernel does not count filters")
    code = "from mlflow_perf.core.seccomp import count_filters; print(count_filters())"
    below = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert int(below) == count_filters()


def test_without_the_kernels_word_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another system, or in a sandbox without procfs."""

    def refuse(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(seccomp, "open_file", refuse)
    assert count_filters() == 0
