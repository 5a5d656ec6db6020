"""The age of a program, which may have replaced another one in its process."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from mlflow_perf.core.program_age import process_age_sec, program_age_sec

_SAY = "from mlflow_perf.core.program_age import program_age_sec; print(program_age_sec())"


def test_a_process_knows_its_age() -> None:
    """The age is that of the process, and smaller for an earlier moment."""
    now = time.monotonic()
    age = process_age_sec(at=now)
    assert age > 0
    assert process_age_sec(at=now - 0.5) == pytest.approx(age - 0.5, abs=0.2)


def test_a_program_is_as_old_as_its_process() -> None:
    """Nothing else ran in the process before."""
    began = program_age_sec()
    assert began <= process_age_sec(at=time.monotonic()) + 0.5
    time.sleep(0.1)
    assert program_age_sec() - began == pytest.approx(0.1, abs=0.09)


def test_a_program_that_replaced_a_shell_is_younger_than_its_process() -> None:
    """Bash becomes the last command of `bash -c`: what it did before is not the program's."""
    shell = f"{sys.executable} -c 'import time; time.sleep(3)'; exec {sys.executable} -c '{_SAY}'"
    began = time.monotonic()
    age = float(subprocess.check_output(["bash", "-c", shell], text=True))
    assert 0.0 < age <= time.monotonic() - began - 2.5
