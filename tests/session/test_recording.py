"""One recording: what its settings and the end of its block make of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from mlflow_perf.core.settings import Settings
from mlflow_perf.publish.recovery import read_journal
from mlflow_perf.session import recording as recording_module
from mlflow_perf.session.outcome import Outcome
from mlflow_perf.session.patience import Patience
from mlflow_perf.session.recording import Recording


def test_a_setting_goes_from_the_dataclass_to_where_it_is_used(store: str, tmp_path: Path) -> None:
    """Interval and length reach the sampler, `dir` the journal, the others the run."""
    settings = Settings(
        interval=0.05,
        max_length=10,
        metrics_prefix="a_",
        artifact_path="figures",
        node_price=36.0,
        dir=str(tmp_path / "state"),
    )
    recording = Recording("train", settings)
    recording.start()
    collector = recording._collector
    assert collector is not None
    assert collector.report_thread is not None
    assert collector.report_thread.time_increment == 0.05
    assert collector.max_length == 10
    (journal,) = (tmp_path / "state").glob("*.journal")
    delivery, _ = read_journal(journal.read_bytes())
    assert delivery.header() == {**recording._address(delivery.document).header(),
                                 "tags": delivery.tags}  # fmt: skip
    recording.finish(Outcome())
    assert recording.sent
    assert recording.summary["node_cost"] > 0
    assert recording.run.run_id is not None
    run = MlflowClient(store).get_run(recording.run.run_id)
    assert "a_duration_sec" in run.data.metrics
    files = MlflowClient(store).list_artifacts(recording.run.run_id)
    assert "figures" in [file.path for file in files]
    assert not journal.exists()


def test_a_store_that_hangs_costs_the_next_block_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block of a process does not wait its whole time once more."""
    allowed_sec, passed_sec = [], [0.0]

    def hang(*_: object, deadline: float, **__: object) -> bool:
        allowed_sec.append(deadline - time.monotonic())
        passed_sec[0] += allowed_sec[-1]
        return False

    clock = lambda: time.monotonic() + passed_sec[0]  # noqa: E731
    monkeypatch.setattr(recording_module, "dispatch", hang)
    monkeypatch.setattr(recording_module, "_patience", Patience(0.0, clock))
    for _ in range(2):
        recording = Recording("train", Settings(dir=str(tmp_path), exit_timeout=300.0))
        recording.start()
        recording.finish(Outcome())
    assert allowed_sec[0] > 30.0
    assert allowed_sec[1] <= 3.0


def test_an_interrupt_before_sending_keeps_the_whole_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second Ctrl-C may come while MLflow is imported, or the run is still being created."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    recording = Recording("train", Settings(dir=str(tmp_path)), is_command=True)
    monkeypatch.setattr(recording.finder, "find", lambda **_: None)
    monkeypatch.setattr(recording.finder, "close", Mock(side_effect=KeyboardInterrupt))
    recording.start()
    with pytest.raises(KeyboardInterrupt):
        recording.finish(Outcome("KILLED", "signal SIGINT"))
    (journal,) = tmp_path.glob("*.journal")
    delivery, _ = read_journal(journal.read_bytes())
    assert "duration_sec" in delivery.document.summary
    assert "train' was not sent (ConnectionRefused" in caplog.text  # the true reason


def test_a_start_that_is_interrupted_leaves_no_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process lives on: nobody is to be told that it was killed."""
    recording = Recording("train", Settings(dir=str(tmp_path)))
    monkeypatch.setattr(recording.finder, "find", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        recording.start()
    assert list(tmp_path.glob("*.journal"))
    recording.finish(Outcome("KILLED", "KeyboardInterrupt"), limit_sec=2.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("store")
def test_a_commands_end_is_on_disk_before_mlflow_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher, a container or the kernel may kill the wrapper in the seconds that this takes."""
    found = []

    def close(*_: object, **__: object) -> float:
        (journal,) = tmp_path.glob("*.journal")
        found.append(read_journal(journal.read_bytes())[0].document)
        return 0.0

    recording = Recording("train", Settings(dir=str(tmp_path)), is_command=True)
    recording.start()
    monkeypatch.setattr(recording.finder, "close", close)
    recording.finish(Outcome("FAILED", "exit code 3"))
    assert [one.status for one in found] == ["FAILED"]
    assert "duration_sec" in found[0].summary


@pytest.mark.usefixtures("store")
def test_a_second_end_does_nothing() -> None:
    """A signal and the end of the block may come together: the first one decides."""
    recording = Recording("train", Settings(interval=0.05))
    recording.start()
    recording.finish(Outcome("KILLED", "signal SIGTERM"))
    document = recording.document
    recording.finish(Outcome())
    assert recording.document is document
    assert document.nodes[0].status == "KILLED"


@pytest.mark.usefixtures("store")
def test_a_report_on_the_way_and_the_one_at_the_end_go_to_one_run() -> None:
    """`report_now` sends what there is; the recording goes on, and its end replaces it."""
    recording = Recording("train", Settings(interval=0.05))
    recording.start(wait=False)
    recording.report_now(Outcome("KILLED", "signal SIGTERM"), limit_sec=60)
    first = recording.run.run_id
    assert first is not None
    assert MlflowClient().get_run(first).data.tags["mlflow_perf.status"] == "KILLED"
    recording.finish(Outcome())
    assert recording.run.run_id == first
    assert MlflowClient().get_run(first).data.tags["mlflow_perf.status"] == "FINISHED"
    experiment = MlflowClient().get_run(first).info.experiment_id
    assert len(MlflowClient().search_runs([experiment])) == 1


def test_a_run_of_its_own_ends_as_the_worst_of_its_ranks(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that does not sample fails in its block: run, tags and document say so, with why."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    ranks = []
    for rank in range(2):
        place = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
        for name, value in place.items():
            monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
        ranks.append(Recording("train", Settings()))
        ranks[-1].start()
    ranks[1].finish(Outcome("FAILED", "ValueError"))
    ranks[0].finish(Outcome())
    assert ranks[0].document.nodes[0].status == "FAILED"
    run = MlflowClient(store).get_run(str(ranks[0].run_id))
    assert run.info.status == "FAILED"
    assert run.data.tags["mlflow_perf.status"] == "FAILED"
    assert run.data.tags["mlflow_perf.cause"] == "ValueError"


_SCRIPT = """
import sys, time
{first}
import mlflow_perf
with mlflow_perf.report("small", interval=0.1) as perf:
    mine = bytearray(b"x") * (20 << 20)
    {body}
    time.sleep(0.25)
import json
print(json.dumps(perf.summary))
"""


def run_small(folder: Path, first: str = "", body: str = "", **environ: str) -> dict[str, float]:
    """Return the figures of a script of 20 MB that sleeps, reported to a store of its own."""
    environ = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/m.db", **environ}
    script = _SCRIPT.format(first=first, body=body)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environ, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.e2e
def test_the_cost_of_reporting_is_not_the_jobs(tmp_path: Path) -> None:
    """A script of about 30 MB is reported as such; our import of MLflow has figures of its own."""
    found = run_small(tmp_path)
    assert 25 < found["job_max_mem_mb"] < 45
    assert found["job_cpu_hours"] * 3600 < 0.3
    assert found["perf_mem_mb"] > 80
    # At least a second of CPU time, in a block of about a quarter of one.
    assert found["perf_overhead_pct"] * found["duration_sec"] / 100 > 0.5


@pytest.mark.e2e
def test_mlflow_that_is_imported_at_the_end_is_told_too(store: str, tmp_path: Path) -> None:
    """In a run that the environment names, MLflow is needed last; its memory counts as ours."""
    run_id = MlflowClient(store).create_run("0").info.run_id
    found = run_small(tmp_path, MLFLOW_TRACKING_URI=store, MLFLOW_RUN_ID=run_id)
    assert 25 < found["job_max_mem_mb"] < 45
    assert found["perf_mem_mb"] > 80


_BARE = """
mine = bytearray(b"x") * (20 << 20)
import pandas
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


@pytest.mark.e2e
def test_memory_shared_with_mlflow_is_the_jobs(tmp_path: Path) -> None:
    """A job that imports pandas after MLflow did has about the memory that it has without MLflow.

    Up to a sixth more has been measured; what the job had was once told as half of it.
    """
    bare = subprocess.run([sys.executable, "-c", _BARE], check=True, capture_output=True, text=True)
    found = run_small(tmp_path, body="import pandas")
    assert found["job_max_mem_mb"] == pytest.approx(int(bare.stdout) / 1024, rel=0.2)
    assert found["perf_mem_mb"] > 60


@pytest.mark.e2e
def test_mlflow_is_the_jobs_where_the_job_imports_it(tmp_path: Path) -> None:
    """What the job imported before us is in its memory, and not in ours."""
    found = run_small(tmp_path, "import mlflow; mlflow.active_run()")
    assert found["job_max_mem_mb"] > 100


def test_a_held_report_needs_no_mlflow(tmp_path: Path) -> None:
    """The pipeline runner sends a step's report: its wrapper stays small, and makes no store."""
    environ = {
        **os.environ,
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/m.db",
        "MLFLOW_RUN_ID": "0" * 32,
        "MLFLOW_PERF_DIR": str(tmp_path / "journals"),
    }
    command = [sys.executable, "-m", "mlflow_perf", "run", "--hold", "--name", "x", "--", "true"]
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, capture_output=True)
    (journal,) = (tmp_path / "journals").glob("*.journal")
    summary = json.loads(journal.read_text().splitlines()[-1])["final"]["summary"]
    assert summary["perf_mem_beside_mb"] <= summary["perf_mem_mb"] < 60
    assert not (tmp_path / "m.db").exists()
