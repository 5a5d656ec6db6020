"""`autolog()` in this process: each run gets its report; MLflow and the job stay the same."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

import mlflow_perf
from mlflow_perf.core.settings import Settings
from mlflow_perf.core.thread_list import list_threads
from mlflow_perf.publish.recovery import read_journal
from mlflow_perf.session import autolog, run_recorder
from mlflow_perf.session.open_runs import open_runs
from mlflow_perf.session.outcome import Outcome
from mlflow_perf.session.run_recorder import RunRecorder
from mlflow_perf.tracking import run_events
from mlflow_perf.tracking.perf_run import MEASURED_TAG

PAGE = "perf_report.html"


@pytest.fixture(autouse=True)
def _autolog(store: str) -> Iterator[None]:
    """Switch it on for one test."""
    mlflow_perf.autolog(quiet=True)
    yield
    mlflow_perf.autolog(disable=True)
    assert not open_runs


def read(run: Run | str) -> Run:
    """Return a run from the store."""
    return MlflowClient().get_run(run if isinstance(run, str) else run.info.run_id)


def burn(seconds: float) -> None:
    """Use the CPU for a while, as this thread's clock counts it."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def used_sec(run: Run) -> float:
    """Return the CPU time of a run's job."""
    return run.data.metrics["job_cpu_avg_cores"] * run.data.metrics["duration_sec"]


def list_files(run: Run) -> list[str]:
    """Return the artifacts of a run."""
    return sorted(f.path for f in MlflowClient().list_artifacts(run.info.run_id))


def test_memory_is_freed_before_mlflow_ends_a_run() -> None:
    """A job that has used up its memory ends its run as it could without us."""
    with mlflow.start_run():
        recorder = autolog._autolog
        assert recorder is not None
        assert recorder._reserve is not None
    assert recorder._reserve is None


def test_nested_runs_have_exact_figures_of_their_own_span() -> None:
    """The child has the CPU time of its body, the parent all of it; neither overlaps."""
    with mlflow.start_run() as parent:
        burn(0.1)
        with mlflow.start_run(nested=True) as child:
            burn(0.2)
    inner, outer = read(child), read(parent)
    assert 0.19 <= used_sec(inner) <= 0.25
    # What MLflow itself does for the child is the parent's.
    assert used_sec(inner) + 0.09 <= used_sec(outer) <= 0.6
    for run in (inner, outer):
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow_perf.status"] == "FINISHED"
        assert "mlflow_perf.overlapping_runs" not in run.data.tags
        assert run.data.tags.get(MEASURED_TAG) == (None if run is outer else parent.info.run_id)
        assert list_files(run) == ["perf", PAGE]
        document = mlflow_perf.load(run.info.run_id)
        assert document.nodes[0].component == run.data.tags["mlflow_perf.component"]


def test_runs_side_by_side_say_so() -> None:
    """Trials in threads have each other's work in their figures; their study is not counted."""
    both = threading.Barrier(2)

    def trial() -> None:
        with mlflow.start_run(nested=True, tags={"mlflow.parentRunId": study.info.run_id}) as run:
            both.wait(30)
            ids.append(run.info.run_id)
            both.wait(30)

    ids: list[str] = []
    with mlflow.start_run() as study:
        threads = [threading.Thread(target=trial) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [read(i).data.tags["mlflow_perf.overlapping_runs"] for i in ids] == ["1", "1"]
    note = read(ids[0]).data.tags["mlflow.note.content"]
    assert "1 other run of the same process ran meanwhile" in note
    assert "mlflow_perf.overlapping_runs" not in read(study).data.tags


def test_operations_are_those_of_the_run() -> None:
    """What was timed before or after a run is not its own."""
    with mlflow.start_run() as first, mlflow_perf.time("load"):
        pass
    with mlflow.start_run() as second:
        for _ in range(3):
            with mlflow_perf.time("fit"):
                pass
    assert [k for k in read(first).data.metrics if k.startswith("ops/")] == ["ops/load/total_ms"]
    metrics = read(second).data.metrics
    assert metrics["ops/fit/count"] == 3
    assert not [k for k in metrics if k.startswith("ops/load")]


def test_a_block_inside_a_run_is_not_counted_twice() -> None:
    """report() in an autologged run is a timed operation of it, and knows its run."""
    with mlflow.start_run() as run, mlflow_perf.report("inner") as perf:
        assert perf.run_id == run.info.run_id
        assert not perf.own_run
        perf.add_counter("rows", 5)
    found = read(run)
    assert found.data.metrics["ops/rows/count"] == 5
    assert "ops/inner/total_ms" in found.data.metrics
    assert not [k for k in found.data.metrics if k.startswith("inner/")]
    assert list(mlflow_perf.load(run.info.run_id).nodes) == [0]


def test_a_run_inside_a_block_is_its_child_and_both_report() -> None:
    """The block has a run of its own; the job's run is below it, with figures of its own."""
    with mlflow_perf.report("outer", quiet=True) as perf, mlflow.start_run() as run:
        pass
    assert perf.run_id is not None
    assert read(run).data.tags["mlflow.parentRunId"] == perf.run_id
    assert "duration_sec" in read(run).data.metrics
    assert "duration_sec" in read(perf.run_id).data.metrics


def test_no_parent_tag_points_into_another_store(tmp_path: Path) -> None:
    """A script that chooses a store of its own gets no parent that does not exist there."""
    with mlflow_perf.report("outer", quiet=True):
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'other.db'}")
        os.environ.pop("MLFLOW_EXPERIMENT_ID")
        with mlflow.start_run() as run:
            pass
    assert "mlflow.parentRunId" not in read(run).data.tags
    assert "duration_sec" in read(run).data.metrics


def test_a_failed_run_is_failed_everywhere() -> None:
    """The exception passes through; MLflow's status and ours agree, with the cause."""
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, mlflow.start_run() as run:
        raise error
    assert caught.value is error
    found = read(run)
    assert found.info.status == found.data.tags["mlflow_perf.status"] == "FAILED"
    assert found.data.tags["mlflow_perf.cause"] == "ValueError"


def test_a_run_of_the_past_is_not_measured() -> None:
    """Runs copied from elsewhere keep their figures; nothing of them happened here."""
    client = MlflowClient()
    run = client.create_run(os.environ["MLFLOW_EXPERIMENT_ID"], start_time=1_600_000_000_000)
    client.set_terminated(run.info.run_id)
    assert "duration_sec" not in read(run).data.metrics


def test_a_trial_that_is_logged_after_its_search_has_the_search_s_span() -> None:
    """scikit-learn's searches create their children at their end, with the search's start."""
    client = MlflowClient()
    with mlflow.start_run() as search:
        burn(0.1)
        trials = [
            client.create_run(
                search.info.experiment_id,
                start_time=search.info.start_time,
                tags={"mlflow.parentRunId": search.info.run_id},
            )
            for _ in range(2)
        ]
        for trial in trials:
            client.set_terminated(trial.info.run_id)
    assert min(used_sec(read(trial)) for trial in trials) >= 0.09
    tags = read(trials[0]).data.tags
    assert tags[MEASURED_TAG] == search.info.run_id
    assert "these figures are of the whole parent run" in tags["mlflow.note.content"]
    assert "mlflow_perf.overlapping_runs" not in tags
    assert "mlflow_perf.overlapping_runs" not in read(search).data.tags


def test_a_run_that_outlives_its_parent_is_not_measured_by_it() -> None:
    """Nor is the child of a run that was deleted."""
    client, experiment = MlflowClient(), os.environ["MLFLOW_EXPERIMENT_ID"]
    with mlflow.start_run() as top:
        runs = []
        for above in (top.info.run_id, None):
            tags = {} if above is None else {"mlflow.parentRunId": above}
            parent = client.create_run(experiment, tags=tags)
            tags = {"mlflow.parentRunId": parent.info.run_id}
            runs += [parent, client.create_run(experiment, tags=tags)]
        inner = client.create_run(experiment, tags={"mlflow.parentRunId": runs[1].info.run_id})
        client.set_terminated(inner.info.run_id)
        client.set_terminated(runs[2].info.run_id)
        client.delete_run(runs[0].info.run_id)
        for run in (runs[1], runs[3]):
            client.set_terminated(run.info.run_id)
    assert read(inner).data.tags[MEASURED_TAG] == runs[1].info.run_id
    for run in runs[1:]:
        assert MEASURED_TAG not in read(run).data.tags


def test_a_run_inside_a_block_is_measured_by_the_block() -> None:
    """The block's own run is the parent of what the job starts in it."""
    with mlflow_perf.report("outer") as block, mlflow.start_run() as run:
        pass
    assert read(run).data.tags[MEASURED_TAG] == block.run_id


def test_runs_that_the_interpreter_s_end_closes_are_inside_each_other() -> None:
    """The inner one ends first, whatever ends them all."""
    with mlflow.start_run() as outer, mlflow.start_run(nested=True) as inner:
        recorder = autolog._autolog
        assert recorder is not None
        recorder.end_runs(lambda _: Outcome("KILLED"))
        recorder._queue.drain(30.0)
    assert read(inner).data.tags[MEASURED_TAG] == outer.info.run_id
    assert MEASURED_TAG not in read(outer).data.tags


def test_a_deleted_run_gets_nothing() -> None:
    """Its owner wants none of it."""
    with pytest.raises(mlflow.MlflowException, match="deleted"), mlflow.start_run() as run:
        MlflowClient().delete_run(run.info.run_id)
    assert "duration_sec" not in read(run).data.metrics


def test_a_run_that_is_deleted_and_restored_is_reported() -> None:
    """Its figures are those of its whole time."""
    client = MlflowClient()
    with mlflow.start_run() as run:
        burn(0.05)
        client.delete_run(run.info.run_id)
        client.restore_run(run.info.run_id)
        burn(0.05)
    assert used_sec(read(run)) >= 0.09


def test_a_run_that_is_resumed_keeps_its_earlier_report(caplog: pytest.LogCaptureFixture) -> None:
    """The later figures count, and the earlier document stays beside."""
    with mlflow.start_run() as run:
        pass
    with mlflow.start_run(run_id=run.info.run_id):
        burn(0.05)
    names = [f.path for f in MlflowClient().list_artifacts(run.info.run_id, "perf")]
    assert any("replaced-node-0" in name for name in names)
    assert "This one replaces it" in caplog.text


def test_switched_off_it_leaves_runs_alone() -> None:
    """Even a run that is open gets no report any more; another call switches it on again."""
    with mlflow.start_run() as open_run:
        mlflow_perf.autolog(disable=True)
    with mlflow.start_run() as later:
        pass
    mlflow_perf.autolog(quiet=True)
    with mlflow.start_run() as again:
        pass
    assert "duration_sec" not in read(open_run).data.metrics
    assert "duration_sec" not in read(later).data.metrics
    assert "duration_sec" in read(again).data.metrics


def test_settings_hold_for_the_runs_that_start_afterwards() -> None:
    """A second call replaces the settings of the first."""
    mlflow_perf.autolog(name="step", metrics_prefix="perf.", quiet=True)
    with mlflow.start_run() as run:
        pass
    assert read(run).data.tags["mlflow_perf.component"] == "step"
    assert "perf.duration_sec" in read(run).data.metrics


@pytest.mark.parametrize("wrong", [{"interval": 0}, {"run_id": "1"}, {"intervall": 1}])
def test_a_wrong_setting_is_said_at_the_call(wrong: dict[str, object]) -> None:
    """It raises, and what was switched on before goes on."""
    with pytest.raises((ValueError, TypeError)):
        mlflow_perf.autolog(**wrong)  # type: ignore[arg-type]
    with mlflow.start_run() as run:
        pass
    assert "duration_sec" in read(run).data.metrics


def test_disable_in_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLFLOW_PERF_DISABLE switches everything of ours off."""
    monkeypatch.setenv("MLFLOW_PERF_DISABLE", "true")
    mlflow_perf.autolog()
    with mlflow.start_run() as run:
        pass
    assert "duration_sec" not in read(run).data.metrics


def test_many_short_runs_leak_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After the first ones a short run gets figures and document alone; nothing is left behind."""
    monkeypatch.setattr(run_recorder, "_FULL_SHORT_RUNS", 2)
    hub = autolog._autolog
    assert hub is not None
    runs = []
    for _ in range(6):
        with mlflow.start_run() as run:
            runs.append(run)
        if len(runs) == 3:
            hub._queue.drain(60)
            descriptors = len(os.listdir("/proc/self/fd"))
    hub._queue.drain(60)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    assert list_files(runs[0]) == ["perf", PAGE]
    assert list_files(runs[-1]) == ["perf"]
    assert read(runs[-1]).data.metrics["run_node_count"] == 1.0
    names = [t.name for t in list_threads() if t.name.startswith("mlflow-perf")]
    assert len(names) == len(set(names)) <= 3
    journals = list((tmp_path / "mlflow-perf-journal").glob("*.journal"))
    assert journals == []


@pytest.mark.parametrize("interval", [0.05, 3600.0])
def test_a_kill_leaves_a_journal_from_the_first_sample_on(interval: float, tmp_path: Path) -> None:
    """Or from the start, where the first sample would come late."""
    mlflow_perf.autolog(interval=interval, quiet=True)
    until = time.monotonic() + 60.0
    with mlflow.start_run() as run:
        found: list[bytes] = []
        while not (found and (interval > 1.0 or b'"rows"' in found[0])):
            assert time.monotonic() < until
            time.sleep(0.01)
            folder = tmp_path / "mlflow-perf-journal"
            found = [path.read_bytes() for path in folder.glob("*.journal")]
        delivery, _ = read_journal(found[0])
    assert delivery.run.run_id == run.info.run_id
    assert delivery.document.node["recorded_by"] == "autolog"
    assert delivery.document.started is not None
    assert ("duration_sec" in delivery.document.summary) is (interval < 1.0)


def test_a_store_that_refuses_costs_the_report_not_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run ends as ever; its report is kept in a journal and one line says so."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # in a user's test it would not be reported
    log_batch = MlflowClient.log_batch

    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("away")

    with mlflow.start_run() as run:
        monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    assert read(run).info.status == "FINISHED"
    assert "mlflow-perf recover" in caplog.text
    assert list((tmp_path / "mlflow-perf-journal").glob("*.journal"))


def test_threads_that_switch_it_on_at_once_share_one_recorder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Switching it off then leaves nothing that listens."""
    mlflow_perf.autolog(disable=True)
    both = threading.Barrier(2)

    class Slow(RunRecorder):
        def __init__(self, settings: Settings) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            super().__init__(settings)

    monkeypatch.setattr(autolog, "RunRecorder", Slow)
    threads = [threading.Thread(target=mlflow_perf.autolog) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [autolog._autolog] == run_events._listeners
    mlflow_perf.autolog(disable=True)
    assert run_events._listeners == []


@pytest.mark.parametrize("disable", [False, True])
def test_a_signal_handler_may_switch_it_inside_another_switch(
    disable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for itself, and what its handler said last holds."""
    mlflow_perf.autolog(disable=True)
    listen = run_events.listen

    def interrupted(recorder: RunRecorder) -> None:
        monkeypatch.setattr(autolog, "listen", listen)
        mlflow_perf.autolog(disable=disable)
        listen(recorder)

    monkeypatch.setattr(autolog, "listen", interrupted)
    mlflow_perf.autolog()
    assert run_events._listeners == ([] if disable else [autolog._autolog])


def test_a_child_forked_during_a_switch_can_switch() -> None:
    """The thread that holds the lock does not exist in the child."""
    with autolog._switching:
        autolog._renew_in_child()
        thread = threading.Thread(target=mlflow_perf.autolog, kwargs={"disable": True})
        thread.start()
        thread.join(30)
        assert not thread.is_alive()


def test_the_page_is_asked_for_within_the_time_of_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that hangs takes half of it, once; without time left it is not asked."""
    released, asked = threading.Event(), []

    def hang(uri: str) -> bool:
        asked.append(uri)
        return released.wait(30)

    monkeypatch.setattr(run_recorder, "has_page", hang)
    recorder = autolog._autolog
    assert recorder is not None
    uri = "http://127.0.0.1:1"
    assert not recorder._has_page(uri, 0.0)
    assert not asked
    assert not recorder._has_page(uri, time.monotonic() + 0.02)
    assert asked == [uri]
    released.set()
    assert recorder._has_page(uri, time.monotonic() + 60)
    assert asked == [uri]


def test_the_exit_timeout_of_the_call_holds_at_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wins over the environment, and a second call changes it."""
    mlflow_perf.autolog(exit_timeout=3)
    recorder = autolog._autolog
    assert recorder is not None
    drained: list[float] = []
    monkeypatch.setattr(recorder._queue, "drain", drained.append)
    autolog.finish_at_exit()
    assert drained == [3.0]
    assert recorder._queue.timeout_sec == 3.0
