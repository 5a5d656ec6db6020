"""Rules of the sitecustomize that Python processes below a session run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mlflow_perf.integrations import startup


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of the start-up code, in an environment as below a session."""
    monkeypatch.setenv("MLFLOW_PERF_SPOOL", str(tmp_path))
    assert startup.__file__ is not None
    return str(Path(startup.__file__).parent)


def _run(script: str, folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, str(program)], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip


def test_sitecustomize_of_the_user_is_run(path: str, tmp_path: Path) -> None:
    """The user's own sitecustomize runs as without us, and the import system is whole after it."""
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 'mine'")
    paths = f"{path}{os.pathsep}{tmp_path}"
    script = """
        import builtins, sys
        import sitecustomize
        print(builtins.mine, sitecustomize.__file__)
        print([p for p in sys.path if p.endswith("startup")])
    """
    mine, left = _run(script, tmp_path, paths).stdout.splitlines()
    assert mine == f"mine {tmp_path}/sitecustomize.py"
    assert left == "[]"


def test_what_was_lent_is_taken_back(path: str, tmp_path: Path) -> None:
    """A command that is a Python finds PYTHONPATH unset, as do the processes that it starts."""
    script = """
        import os, subprocess
        print(os.environ.get("PYTHONPATH"))
        subprocess.run(["sh", "-c", "echo ${PYTHONPATH-unset}"], check=True)
    """
    assert sorted(_run(script, tmp_path, path).stdout.split()) == ["None", "unset"]


def test_interpreter_without_us(path: str, tmp_path: Path) -> None:
    """A Python below the session in which mlflow_perf is not installed runs as without us."""
    script = f"import runpy; runpy.run_path({path + '/sitecustomize.py'!r})"
    script += "; import sys; print('fine', 'mlflow_perf' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-S", "-c", script], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (result.stdout, result.stderr) == ("fine False\n", "")


def test_an_interpreter_below_a_session_starts_light(path: str, tmp_path: Path) -> None:
    """A process that imports no ProxyStore loads neither mlflow_perf nor typing or logging."""
    script = """
        import sys
        print([name for name in ("mlflow_perf", "typing", "logging") if name in sys.modules])
        print("_mlflow_perf_startup" in sys.modules)
    """
    result = subprocess.run(
        [sys.executable, "-S", "-c", f"import sitecustomize{textwrap.dedent(script)}"],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout.splitlines() == ["[]", "True"]


@pytest.mark.parametrize(("options", "noted"), [(["-S"], [sys.executable]), ([], [])])
def test_mlflow_without_us_is_noted(
    options: list[str], noted: list[str], path: str, tmp_path: Path
) -> None:
    """The session above learns of an interpreter whose MLflow runs it cannot notice."""
    (tmp_path / "mlflow.py").touch()
    subprocess.run(
        [sys.executable, *options, "-c", "import sitecustomize, mlflow"],
        env=os.environ | {"PYTHONPATH": f"{path}{os.pathsep}{tmp_path}"}, check=True,
    )  # fmt: skip
    assert [file.read_text() for file in tmp_path.glob("unseen-*.spool")] == noted
