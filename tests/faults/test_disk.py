"""The journals' disk full, read-only, or not there; no place for artifacts; a source that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.faults.conftest import Fault, Faults

pytestmark = pytest.mark.e2e


def journal_warnings(output: str) -> int:
    """Return how many lines say that the journal cannot be written."""
    return sum("journal" in line and "cannot be written" in line for line in output.splitlines())


def test_a_full_disk(faults: Faults, fault: Fault, mounted: Callable[[str], Path]) -> None:
    """One warning, and the report is complete all the same; nothing is left behind."""
    place = mounted("size=1m")
    job = faults.start("fill", str(place), MLFLOW_PERF_DIR=str(place))
    assert job.wait() == 0, job.output
    assert "full\n" in job.output
    assert journal_warnings(job.output) == 1, job.output
    run_id = job.run_id
    assert faults.run(run_id).info.status == "FINISHED"
    assert faults.has_all(run_id)
    assert [path.name for path in place.iterdir()] == ["ballast"]
    fault("disk of the journals full", "one warning, all logged", "none")


@pytest.mark.parametrize("what", ["read-only", "a file"])
def test_a_folder_that_cannot_be_written(
    faults: Faults, fault: Fault, mounted: Callable[[str], Path], tmp_path: Path, what: str
) -> None:
    """One warning, and in-memory reporting goes on."""
    if what == "read-only":
        place = mounted("ro,size=1m")
    else:
        place = tmp_path / "file"
        place.touch()
    job = faults.start("busy", 0.2, MLFLOW_PERF_DIR=str(place))
    assert job.wait() == 0, job.output
    assert journal_warnings(job.output) == 1, job.output
    run_id = job.run_id
    assert faults.has_all(run_id)
    assert faults.run(run_id).data.metrics["ops/rows/count"] == 7
    fault(f"folder of the journals is {what}", "one warning, all logged", "none")


def test_a_folder_that_is_tidied_away(faults: Faults, fault: Fault) -> None:
    """A journal that somebody deleted during the job is there again within seconds."""
    job, run_id = faults.started("tidied")
    assert [name for name in faults.journals if name.endswith(".journal")]
    job.kill(9)
    assert job.wait() == -9
    assert faults.recovered() == run_id
    assert faults.has_all(run_id)
    fault("folder of the journals deleted", "made again; recover logs it", "at most the last 8 s")


def test_an_artifact_store_that_takes_nothing(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """The run has its figures and ends; recover sends the artifacts once their store takes them."""
    place = tmp_path / "in the way"
    place.touch()
    where = (place / "artifacts").as_uri()
    experiment = faults.client.create_experiment(f"nowhere {tmp_path}", where)
    job = faults.start("busy", 0.2, MLFLOW_EXPERIMENT_ID=experiment)
    assert job.wait() == 0, job.output
    assert "its figures are in the run, its artifacts are not" in job.output
    run = faults.run(job.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["ops/rows/count"] == 7
    place.unlink()
    assert faults.recovered() == job.run_id
    assert faults.has_all(job.run_id)
    fault("artifact store takes nothing", "figures logged; recover sends the artifacts", "none")


def test_a_source_that_fails(faults: Faults, fault: Fault) -> None:
    """Its figures are absent, the others are there, and one warning says so."""
    job = faults.start("failing_source")
    assert job.wait() == 0, job.output
    run_id = job.run_id
    metrics = faults.run(run_id).data.metrics
    assert "max_t_mem_percent" not in metrics
    assert "cpu_avg_utilization_pct" in metrics
    assert job.output.count("cannot be read now") == 1
    fault("a source fails", "its figures absent, one warning", "its figures")
