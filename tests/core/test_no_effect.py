"""A public name that cannot be loaded, and the job that uses it."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

import mlflow_perf
from mlflow_perf.core import no_effect

_JOB = """
from mlflow_perf import part, report, steps

@report("train")
def train(rows):
    with part("read"):
        return sum(steps(rows))

print(train([1, 2]))
from mlflow_perf import MlflowPerfError
"""


def test_a_name_that_comes_too_late_does_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its block, its loop and its function run as without us, and one line says so."""
    monkeypatch.setattr(no_effect, "_said", set())
    for name in ("report", "steps", "time"):
        monkeypatch.delitem(vars(mlflow_perf), name, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "is_finalizing", lambda: True)
        late: Any = mlflow_perf.report
        with late("train", interval=1) as perf:
            perf.add_counter("rows", 3)
            with perf.time("work"):
                pass
        assert [*mlflow_perf.steps([1, 2])] == [1, 2]
        assert late(len) is len
        assert late("train")(len)("abc") == 3
    said = capsys.readouterr().err.splitlines()
    assert said == ["mlflow_perf.report has no effect: the interpreter is ending."]
    assert mlflow_perf.report is not late


@pytest.mark.parametrize("module", ["uuid", "statistics", "signal"])
def test_a_module_of_the_job_that_hides_a_standard_one_leaves_the_job_unmeasured(
    tmp_path: Path, module: str
) -> None:
    """One line names the file; the errors that a job catches are there all the same."""
    hidden = tmp_path / f"{module}.py"
    hidden.write_text("print('imported')\n")
    (tmp_path / "job.py").write_text(_JOB)
    done = run([sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "3"
    line, *more = done.stderr.splitlines()
    assert not more
    assert line.startswith("mlflow_perf.report has no effect: ")
    assert str(hidden) in line


def test_the_error_of_a_handler_of_the_job_is_not_taken_for_a_broken_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A time limit that expires while `report` is loaded ends the job, as without us."""

    def expire(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(mlflow_perf, "import_module", expire)
    monkeypatch.setattr(mlflow_perf, "is_from_handler", lambda _: True)
    monkeypatch.delitem(vars(mlflow_perf), "report", raising=False)
    with pytest.raises(TimeoutError):
        _ = mlflow_perf.report
