"""The entry point of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("hidden", ["click", "msgspec"])
def test_a_command_runs_where_the_users_files_hide_our_modules(tmp_path: Path, hidden: str) -> None:
    """Its output and exit code are its own; one line says that it is not measured."""
    (tmp_path / f"{hidden}.py").write_text("raise RuntimeError('not yours')\n")
    done = subprocess.run(
        [sys.executable, "-m", "mlflow_perf", "run", "--", "sh", "-c", "echo ran; exit 3"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert done.stderr.splitlines() == [
        "mlflow-perf cannot start: RuntimeError: not yours. The command runs unmeasured."
    ]


def test_another_command_says_in_a_line_why_it_cannot_start(tmp_path: Path) -> None:
    """There is nothing to run then."""
    (tmp_path / "click.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "mlflow_perf", "show", "x"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("mlflow-perf cannot start: AttributeError")


def test_a_command_runs_where_the_users_json_hides_pythons(tmp_path: Path) -> None:
    """It is needed after the command line is read, and before the command starts."""
    (tmp_path / "json.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "mlflow_perf", "run", "--", "sh", "-c", "echo ran; exit 3"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "MLFLOW_PERF_PROFILE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "ran\n"), done.stderr
    assert f"({tmp_path}/json.py). The command runs unmeasured." in done.stderr
    assert "Traceback" not in done.stderr
