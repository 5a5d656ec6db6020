"""Scripts of the job's that have a library's name, and our imports of MLflow."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_perf.tracking.job_scripts import no_scripts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder on the path of Python, with a script that notes that it was run."""
    (tmp_path / "git_of_job.py").write_text("RAN = True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "git_of_job", raising=False)
    return tmp_path


def test_an_import_of_ours_finds_no_script_and_one_of_the_job_does(folder: Path) -> None:
    """Also while a call of ours goes on: another thread is the job's."""
    with no_scripts(lambda: True), pytest.raises(ModuleNotFoundError, match="rename it"):
        importlib.import_module("git_of_job")
    with no_scripts(lambda: False):
        assert importlib.import_module("git_of_job").RAN
    assert folder.exists()


@pytest.mark.parametrize("beside", ["mlflow/__init__.py", "some-1.0.dist-info/METADATA"])
def test_a_folder_of_libraries_holds_no_scripts(folder: Path, beside: str) -> None:
    """As `pip install --target .` makes it, or an archive with all that a program needs."""
    (folder / beside).parent.mkdir()
    (folder / beside).touch()
    with no_scripts(lambda: True):
        assert importlib.import_module("git_of_job").RAN


def test_a_plugin_of_mlflows_may_lie_beside_the_script(folder: Path) -> None:
    """A project that is installed in place has its packages there."""
    assert folder.exists()
    entry = importlib.metadata.EntryPoint("name", "git_of_job", "mlflow.run_context_provider")
    with no_scripts(lambda: True):
        assert entry.load().RAN


def test_nothing_is_refused_where_the_working_folder_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
    folder.joinpath("git_of_job.py").unlink()
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with no_scripts(lambda: True), pytest.raises(ModuleNotFoundError, match="No module named"):
        importlib.import_module("git_of_job")


@pytest.mark.e2e
def test_a_job_beside_a_script_git_is_reported_and_the_script_not_run(tmp_path: Path) -> None:
    (tmp_path / "git.py").write_text("print('ran', input())\n")
    script = tmp_path / "main.py"
    script.write_text("import mlflow_perf\nwith mlflow_perf.report('it') as perf: pass\n"
                      "print(bool(perf.run_id), input())\n")  # fmt: skip
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/store.db"}
    done = subprocess.run(
        [sys.executable, str(script)], env=os.environ | store, cwd="/", input="the job's\n",
        capture_output=True, text=True, check=True, timeout=250,
    )  # fmt: skip
    assert done.stdout == "True the job's\n", done.stderr
