"""The entry point of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import make_document


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


IMPORTS = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("started", ["module", "script"])
@pytest.mark.parametrize("command", ["run", "group", "show"])
def test_ctrl_c_while_it_imports_ends_it_without_a_word(
    tmp_path: Path, started: str, command: str
) -> None:
    """A traceback would tell the user nothing; a shell's loop ends with the command."""
    (tmp_path / "click.py").write_text(IMPORTS)
    script = [sys.executable, "-c", "from mlflow_perf.__main__ import main; main()"]
    start = [sys.executable, "-m", "mlflow_perf"] if started == "module" else script
    done = subprocess.run(
        [*start, command, "x", "--", "true"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_the_jobs_folder_for_bytecode_gets_next_to_none_of_ours(tmp_path: Path) -> None:
    """MLflow alone has two thousand files; the command itself writes there as ever."""
    (tmp_path / "own.py").write_text("")
    command = [sys.executable, "-c", "import own"]
    subprocess.run(
        [sys.executable, "-m", "mlflow_perf", "run", "--", *command],
        cwd=tmp_path, env={**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "cache")},
        check=True,
    )  # fmt: skip
    found = [path.name for path in (tmp_path / "cache").rglob("*.pyc")]
    assert [name for name in found if name.startswith("own.")]
    assert len(found) < 60


@pytest.fixture
def documents(tmp_path: Path) -> list[str]:
    """Return the files of two documents."""
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path in paths:
        make_document({}).save(path)
    return [str(path) for path in paths]


def _call(redirected: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call a command by a shell that redirects its standard output."""
    command = [sys.executable, "-m", "mlflow_perf", *arguments]
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$@" {redirected}', "sh", *command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
@pytest.mark.parametrize("command", ["--help", "show", "check"])
def test_a_full_disk_is_one_line_and_no_failed_gate(documents: list[str], command: str) -> None:
    """An exit code of 1 says that a gate failed."""
    arguments = {
        "--help": (), "show": documents[:1], "check": (*documents, "--limit", "duration_sec=+900%")
    }[command]  # fmt: skip
    done = _call(">/dev/full", command, *arguments)
    assert done.returncode == 2
    assert done.stderr == "mlflow-perf: OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("command", ["--version", "--help", "check"])
def test_a_reader_that_has_gone_is_no_failed_gate(documents: list[str], command: str) -> None:
    """The exit code is that of any program in a pipe that ends early."""
    limit = (*documents, "--limit", "duration_sec=+900%") if command == "check" else ()
    done = _call("| true", command, *limit)
    assert (done.returncode, done.stderr) in ((141, ""), (0, ""))


def test_a_reader_of_both_streams_that_has_gone_changes_no_exit_code() -> None:
    """Of `2>&1 | head`: what the error stream still holds cannot be written at the end."""
    code = (
        "import os, sys; from mlflow_perf.cli import _ending_without_reader\n"
        "with _ending_without_reader():\n"
        "    sys.stderr.write('held')\n"
        "    while True:\n"
        "        os.write(1, b'x')\n"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", '"$@" 2>&1 | true', "sh", sys.executable, "-c", code],
        check=False,
    )
    assert done.returncode == 141


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_closed_output_is_none(documents: list[str], command: str) -> None:
    """`>&-` asks for nothing but the exit code."""
    limit = ("--limit", "duration_sec=+900%") if command == "check" else ()
    done = _call(">&-", command, *documents[: 1 + bool(limit)], *limit)
    assert (done.returncode, done.stderr) == (0, "")
