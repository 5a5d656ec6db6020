"""Blocks without indentation: `start`, `stop`, and the end of a script that never stops."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from mlflow import MlflowClient

import mlflow_perf
from mlflow_perf.session.report import current

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture(autouse=True)
def _stop() -> Iterator[None]:
    """No test leaves a block open."""
    yield
    mlflow_perf.stop()
    assert current() is None


def test_a_block_lasts_from_start_to_stop() -> None:
    """The object is a session like any other, before and after."""
    perf = mlflow_perf.start("flat", interval=0.05, quiet=True)
    assert perf.is_open
    with perf.time("load"):
        pass
    perf.stop()
    assert perf.run_id is not None
    run = MlflowClient().get_run(perf.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow_perf.component"] == "flat"
    assert "ops/load/total_ms" in run.data.metrics


def test_a_second_stop_does_nothing() -> None:
    """Neither the object's nor the module's."""
    perf = mlflow_perf.start("flat", quiet=True)
    perf.stop()
    summary = perf.summary
    perf.stop()
    mlflow_perf.stop()
    assert perf.summary is summary


def test_a_second_start_ends_the_block_before() -> None:
    """A cell of a notebook can be run again; each run of it has a report."""
    first = mlflow_perf.start("cell", quiet=True)
    second = mlflow_perf.start("cell", quiet=True)
    assert not first.is_open
    assert "duration_sec" in first.summary
    mlflow_perf.stop()
    assert second.run_id != first.run_id
    assert "duration_sec" in second.summary


def test_a_wrong_setting_leaves_the_block_before_open() -> None:
    """It raises at the call, and what was being measured goes on."""
    first = mlflow_perf.start("flat", quiet=True)
    with pytest.raises(ValueError, match="interval"):
        mlflow_perf.start("flat", interval=-1)
    assert first.is_open


def test_disabled_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLFLOW_PERF_DISABLE holds here too."""
    monkeypatch.setenv("MLFLOW_PERF_DISABLE", "1")
    perf = mlflow_perf.start("flat")
    assert not perf.is_open
    perf.stop()


@pytest.mark.e2e
@pytest.mark.parametrize(("end", "code", "status"), [("", 0, "FINISHED"), ("1 / 0", 1, "FAILED")])
def test_a_block_that_is_never_stopped_ends_with_its_script(
    end: str, code: int, status: str
) -> None:
    """As the script ends, so does the run."""
    script = f"import mlflow_perf\nperf = mlflow_perf.start('flat')\nprint(perf.run_id)\n{end}"
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert MlflowClient().get_run(done.stdout.split()[0]).info.status == status


def test_a_decorated_function_names_its_component() -> None:
    """A given name wins; a lambda has the script's."""

    @mlflow_perf.report(quiet=True)
    def clean() -> str | None:
        session = current()
        return None if session is None else session.name

    named = mlflow_perf.report("given", quiet=True)(clean.__wrapped__)  # type: ignore[attr-defined]
    assert clean() == "clean"
    assert named() == "given"
