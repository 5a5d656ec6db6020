"""`report()` against a real store: what MLflow holds after a block, whatever happened in it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import json
import logging
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from tests.alone import alone
from tests.faults.nursery import Job
from tests.model.metrics.test_node_metrics import EIGHTEEN

import mlflow_perf
from mlflow_perf.core.thread_list import list_threads
from mlflow_perf.errors import SettingError, SourceUnavailableError
from mlflow_perf.publish.dispatch import dispatch
from mlflow_perf.publish.journal import Journal
from mlflow_perf.publish.recovery import recover
from mlflow_perf.readers import Reader
from mlflow_perf.session import recording, run_finder
from mlflow_perf.session import report as session_module
from mlflow_perf.session.report import Session, current, report
from mlflow_perf.session.signals import SignalWatch
from mlflow_perf.tracking.client import find_current_experiment
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.search import get_run

KEYS = EIGHTEEN | {"duration_sec", "perf_overhead_pct"}


def burn(seconds: float) -> int:
    """Keep one core busy."""
    until, n = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        n += 1
    return n


def run_of(run_id: str | None) -> Run:
    """Return a run from the store."""
    assert run_id is not None
    return MlflowClient().get_run(run_id)


@alone
def test_a_block_near_the_limit_of_recursion_is_left_and_the_next_one_reported(store: str) -> None:
    """Whatever of it there is no room for: the job has room for all that is its own."""
    del store

    def nest(frames: int) -> str | None:
        if frames:
            return nest(frames - 1)
        re.purge()  # a pattern of ours is compiled once, which takes many calls
        with mlflow_perf.report("deep") as perf:
            pass
        return perf.run_id

    free = sys.getrecursionlimit() - len(inspect.stack())
    found = {room: nest(free - room) for room in range(12, 32)}
    assert None in found.values()
    assert current() is None
    assert nest(1) is not None


@alone
def test_a_short_block_is_told_as_long_as_it_is(store: str) -> None:
    """What we do at both ends, however long, is neither in the block's duration nor its profile."""
    del store
    os.environ["MLFLOW_PERF_PROFILE"] = "200"  # of this process, which is the test's own
    for part, name in ((SignalWatch, "arm"), (SignalWatch, "settle"), (Journal, "start")):
        original = getattr(part, name)

        def late(self: Any, *args: Any, original: Any = original) -> None:
            time.sleep(0.2)
            original(self, *args)

        setattr(part, name, late)
    with mlflow_perf.report("short") as perf:
        began = time.monotonic()
        time.sleep(0.033)
        took = time.monotonic() - began
    assert perf.summary["duration_sec"] == pytest.approx(took, abs=0.15)
    profile = perf.document.nodes[0].extra["profile"]
    assert profile["own"][0]["main_s"] <= perf.summary["duration_sec"] + 0.01


def test_a_block_of_50_ms_reports_everything(store: str) -> None:
    """A short block has every metric of the contract, its document, its report and its tags."""
    with mlflow_perf.report("train") as perf:
        assert perf.run_id is not None
        began = time.monotonic()
        burn(0.05)
        inside_sec = time.monotonic() - began
    run = run_of(perf.run_id)
    missing = KEYS - run.data.metrics.keys()
    assert missing <= {"total_disk_io_read_mb", "total_disk_io_write_mb"}
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "train"
    assert run.data.tags["mlflow_perf.component"] == "train"
    assert run.data.tags["mlflow_perf.status"] == "FINISHED"
    assert run.data.tags["mlflow_perf.version"] == mlflow_perf.__version__
    assert perf.summary["duration_sec"] >= inside_sec
    assert run.data.metrics["run_node_count"] == 1.0
    files = [f.path for f in MlflowClient().list_artifacts(perf.run_id)]
    assert sorted(files) == ["perf", "perf_report.html"]
    document = mlflow_perf.load(perf.run_id)
    assert document.nodes[0].summary == pytest.approx(perf.summary)
    assert document.nodes[0].component == "train"
    assert len(document.nodes[0].reports["timestamp"]) >= 2


def test_metrics_have_the_node_as_step_and_arrive_in_one_batch(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log_batch holds a node's metrics at its step, the run's at step 0, and the tags."""
    batches = []
    original = MlflowClient.log_batch

    def log_batch(
        self: MlflowClient,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Sequence[Param] = (),
        tags: Sequence[RunTag] = (),
        synchronous: bool | None = None,
    ) -> object:
        batches.append((list(metrics), list(tags)))
        return original(self, run_id, metrics=metrics, params=params, tags=tags)

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # a function of a test would stop the report
    with mlflow_perf.report("train", node=3) as perf:
        pass
    assert perf.node == 3
    ((metrics, tags),) = batches
    steps = {m.step for m in metrics if not m.key.startswith("run_")}
    assert steps == {3}
    assert {m.step for m in metrics if m.key.startswith("run_")} == {0}
    assert "mlflow_perf.bottleneck" in {tag.key for tag in tags}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("mine"), "FAILED"),
        (SystemExit(3), "FAILED"),
        (SystemExit(0), "FINISHED"),
        (KeyboardInterrupt(), "KILLED"),
    ],
)
def test_the_jobs_exception_passes_through(store: str, error: BaseException, status: str) -> None:
    """The very exception of the block comes out, and its own run ends as it did."""
    perf = mlflow_perf.report("train")
    with pytest.raises(type(error)) as caught, perf:
        raise error
    assert caught.value is error
    assert perf.run_id is not None
    assert run_of(perf.run_id).info.status == status
    assert "duration_sec" in run_of(perf.run_id).data.metrics


@pytest.mark.parametrize("place", ["store", "server"])
def test_the_run_begins_and_ends_with_its_block(place: str, request: pytest.FixtureRequest) -> None:
    """MLflow's start and duration are the block's: on sqlite, over HTTP and with the decorator."""
    request.getfixturevalue(place)

    @mlflow_perf.report("decorated")
    def function() -> str | None:
        session = current()
        assert session is not None
        time.sleep(0.5)
        return session.run_id

    with mlflow_perf.report("block") as perf:
        began = time.time()
        time.sleep(0.5)
    info = run_of(perf.run_id).info
    assert 0 <= began - info.start_time / 1000 < 10  # on a busy machine
    for run_id in (perf.run_id, function()):
        run = run_of(run_id)
        took_sec = (run.info.end_time - run.info.start_time) / 1000
        assert 0 <= took_sec - run.data.metrics["duration_sec"] < 10


def test_a_slow_server_does_not_delay_the_runs_start(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is created while the block runs begins with the block, not when it is created."""
    inside, original = threading.Event(), find_current_experiment

    def slow(uri: str | None) -> str:
        assert inside.wait(60)
        return original(uri)

    monkeypatch.setattr("mlflow_perf.session.run_finder.find_current_experiment", slow)
    monkeypatch.setattr(run_finder, "_LOCAL_START_SEC", 0.1)
    with mlflow_perf.report("slow", start_timeout=0.1) as perf:
        time.sleep(1)
        began = time.time() - 1
        inside.set()
    info = run_of(perf.run_id).info
    assert info.start_time / 1000 <= began + 0.5
    assert info.end_time - info.start_time >= 1000


def test_a_failed_block_in_a_run_that_goes_on_is_failed(store: str) -> None:
    """`show`, search and the gate see it, although MLflow's own status of the run is FINISHED."""
    runs = []
    for error in (None, ValueError("expected")):
        with (
            mlflow.start_run() as run,
            contextlib.suppress(ValueError),
            mlflow_perf.report("train"),
        ):
            if error is not None:
                raise error
        runs.append(run.info.run_id)
    assert run_of(runs[1]).info.status == "FINISHED"
    assert get_run(runs[1]).status == "FAILED"
    result = mlflow_perf.check(runs[0], runs[1], "duration_sec=+1000000%")
    assert not result.passed
    assert "FAILED" in result.failures[0]


_REPORTS = """
import multiprocessing, sys, time, mlflow_perf

def report(name):
    with mlflow_perf.report(name):
        time.sleep(0.5)

if __name__ == "__main__":
    name, count = sys.argv[1], int(sys.argv[2])
    if count == 1:
        report(name)
    else:
        with multiprocessing.get_context("fork").Pool(count) as pool:
            pool.map(report, [name] * count, chunksize=1)
"""


@pytest.mark.e2e
@pytest.mark.parametrize("place", ["store", "server"])
def test_no_report_of_one_run_is_lost(
    place: str, request: pytest.FixtureRequest, python: Callable[..., Job], tmp_path: Path
) -> None:
    """Commands and the workers of a pool report to one run at once; each report is there."""
    request.getfixturevalue(place)
    client = MlflowClient()
    run_id = client.create_run("0" if place == "server" else os.environ["MLFLOW_EXPERIMENT_ID"])
    run_id = run_id.info.run_id
    script = tmp_path / "reports.py"
    script.write_text(_REPORTS)
    jobs = [
        python(str(script), *arguments, MLFLOW_RUN_ID=run_id)
        for arguments in (("first", "1"), ("second", "1"), ("pool", "3"))
    ]
    assert [job.wait() for job in jobs] == [0, 0, 0], [job.errors for job in jobs]
    document = mlflow_perf.load(run_id)
    assert {node.component for node in document.all_nodes()} == {"first", "second", "pool"}
    metrics = client.get_run(run_id).data.metrics
    assert "duration_sec" in metrics
    assert {f"{name}/duration_sec" for name in document.components} <= metrics.keys()
    folders = ["perf", *(f"perf/{name}" for name in document.components)]
    files = [file.path for folder in folders for file in client.list_artifacts(run_id, folder)]
    assert len([file for file in files if "replaced-node-" in file]) == 2  # of the pool


def test_an_active_run_is_used_and_not_ended(store: str) -> None:
    """Within a run of the user's, the figures go there and it stays open."""
    with mlflow.start_run() as run:
        with mlflow_perf.report("train") as perf:
            pass
        assert perf.run_id == run.info.run_id
        assert run_of(run.info.run_id).info.status == "RUNNING"
        assert "node_cpu_hours" in run_of(run.info.run_id).data.metrics


def test_the_run_of_the_environment_is_used_and_not_ended(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLFLOW_RUN_ID names the run; whoever made it ends it."""
    made = MlflowClient().create_run(os.environ["MLFLOW_EXPERIMENT_ID"])
    monkeypatch.setenv("MLFLOW_RUN_ID", made.info.run_id)
    with mlflow_perf.report("train") as perf:
        pass
    assert perf.run_id == made.info.run_id
    assert run_of(perf.run_id).info.status == "RUNNING"
    assert os.environ["MLFLOW_RUN_ID"] == made.info.run_id


def test_a_run_that_the_job_starts_itself_is_not_disturbed(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that starts runs of its own inside the block works as without us."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", os.environ["MLFLOW_EXPERIMENT_ID"])
    with mlflow_perf.report("train") as perf:
        with mlflow.start_run() as inner:
            mlflow.log_param("a", 1)
        mlflow.set_experiment("another")
        with mlflow.start_run():
            pass
    assert inner.info.run_id != perf.run_id
    assert run_of(perf.run_id).info.status == "FINISHED"


def test_a_block_that_does_nothing_has_the_metrics_too(store: str) -> None:
    """Whatever the kernel's ticks are, the metrics of the contract are all there."""
    with mlflow_perf.report("train") as perf:
        pass
    missing = KEYS - perf.summary.keys()
    assert missing <= {"total_disk_io_read_mb", "total_disk_io_write_mb"}


def test_a_run_id_that_does_not_exist_is_refused_before_the_job(store: str) -> None:
    """An unknown run is a ValueError at the call that names it."""
    with pytest.raises(ValueError, match="no MLflow run 'nope'"):
        mlflow_perf.report("train", run_id="nope")


def test_nothing_raises_while_the_job_runs(
    store: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value, a name or a key that is wrong is left out, or mended, with one warning each."""
    monkeypatch.setattr("mlflow_perf.recorders.timing._warned", False)
    with mlflow_perf.report("train") as perf:
        wrong: Any  # what a job may pass
        for wrong in (float("nan"), float("inf"), None, "much"):
            perf.add_counter("loss", wrong)
            perf.add_time("step", wrong)
        perf.add_attribute("", "x")
        perf.add_counter("loss", 2.0)
        for wrong in ("", 5, None, []):
            with perf.time(wrong):
                pass
        with perf.time("load", {"a": 1}):
            pass
    assert perf.summary["ops/loss/count"] == 2.0
    assert perf.summary["ops/unnamed/count"] == 1.0
    assert perf.summary["ops/load/count"] == 1.0
    assert "ops/step/count" not in perf.summary
    warnings = [r.message.split(":")[0] for r in caplog.records if r.levelno >= logging.WARNING]
    assert warnings == ["The value of 'loss' is nan", "The name of an operation is ''"]


def test_a_store_that_cannot_be_used_is_refused_before_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A local store in a place that cannot be written is a ValueError before the block runs."""
    (tmp_path / "file").write_text("")
    uri = f"sqlite:///{tmp_path}/file/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    ran = []
    try:
        with pytest.raises(ValueError, match="cannot be used"), mlflow_perf.report("train"):
            ran.append(1)
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]
    assert not ran
    assert current() is None


def test_the_decorator_wraps_every_kind_of_function(store: str) -> None:
    """Plain, generator, async and async generator functions keep their names and results."""
    seen = []

    def present_run() -> str | None:
        session = current()
        assert session is not None
        return session.run_id

    @report("plain")
    def plain(x: int) -> int:
        seen.append(present_run())
        return x + 1

    @report("generator")
    def generator(n: int) -> Generator[int, None, str]:
        seen.append(present_run())
        yield from range(n)
        return "end"

    @report("async")
    async def coroutine(x: int) -> int:
        seen.append(present_run())
        await asyncio.sleep(0)
        return x * 2

    @report("async generator")
    async def async_generator(n: int) -> AsyncIterator[int]:
        seen.append(present_run())
        for i in range(n):
            yield i

    async def collect() -> list[int]:
        return [i async for i in async_generator(3)]

    assert plain(1) == 2
    assert list(generator(3)) == [0, 1, 2]
    assert asyncio.run(coroutine(4)) == 8
    assert asyncio.run(collect()) == [0, 1, 2]
    assert plain.__name__ == "plain"
    names = [run_of(run_id).info.run_name for run_id in seen]
    assert names == ["plain", "generator", "async", "async generator"]


def test_a_block_entered_again_within_itself_is_an_operation_of_itself(store: str) -> None:
    """A context manager that is kept in a variable and nested knows its run and records on."""
    perf = mlflow_perf.report("kept")
    with perf:
        run_id = perf.run_id
        with perf:
            perf.add_counter("rows", 2)
            assert (perf.run_id, perf.node, perf.own_run) == (run_id, 0, True)
        assert perf.run_id == run_id
    assert (perf.summary["ops/kept/count"], perf.summary["ops/rows/count"]) == (1, 2)


def test_an_inner_block_is_an_operation_of_the_outer(store: str) -> None:
    """Nested blocks sample once; the inner one is timed, in this thread or another."""
    with mlflow_perf.report("outer") as outer:
        with mlflow_perf.report("inner") as inner:
            assert inner.run_id == outer.run_id
        thread = threading.Thread(target=mlflow_perf.report("in a thread")(lambda: None))
        thread.start()
        thread.join()
        samplers = [t for t in list_threads() if t.name == "mlflow-perf-sampler"]
        assert len(samplers) == 1
    metrics = run_of(outer.run_id).data.metrics
    assert metrics["ops/inner/total_ms"] > 0
    assert metrics["ops/in a thread/total_ms"] > 0
    assert len(MlflowClient().search_runs([os.environ["MLFLOW_EXPERIMENT_ID"]])) == 1


def test_an_inner_block_keeps_its_run_after_its_end(store: str) -> None:
    """Its figures are in the outer block's run; a run that it names itself stays named."""
    asked = MlflowClient().create_run(os.environ["MLFLOW_EXPERIMENT_ID"]).info.run_id
    named, inner = mlflow_perf.report("named", run_id=asked), mlflow_perf.report("inner")
    with mlflow_perf.report("outer", node=3) as outer:
        with inner, named:
            pass
        assert (inner.run_id, inner.node, inner.own_run) == (outer.run_id, 3, True)
    assert (inner.run_id, named.run_id) == (outer.run_id, asked)
    with inner:
        assert inner.run_id not in (None, outer.run_id), "a block by itself has a run of its own"


def test_a_block_begins_while_the_one_before_is_being_sent(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another thread, for example: each has a report of its own."""
    began, go_on, sent = threading.Event(), threading.Event(), dispatch

    def send(delivery: Delivery, *given: Any, **options: Any) -> bool:
        if delivery.document.component == "first":
            began.set()
            assert go_on.wait(60)
        return sent(delivery, *given, **options)

    monkeypatch.setattr(recording, "dispatch", send)
    thread = threading.Thread(target=report("first", quiet=True)(lambda: None))
    thread.start()
    assert began.wait(60)
    with report("second", quiet=True) as perf, perf.time("work"):
        pass
    go_on.set()
    thread.join()
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert {run.info.run_name: run.info.status for run in runs[:2]} == {
        "first": "FINISHED", "second": "FINISHED",
    }  # fmt: skip
    assert run_of(perf.run_id).info.run_name == "second"
    assert perf.document.nodes[0].operations["times"]["work"]["count"] == 1
    assert current() is None


def test_a_forked_child_does_not_send_what_its_parent_sends(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it wait for it: the thread that sends does not exist there."""
    codes: list[int] = []

    def send(*_: object, **__: object) -> bool:
        child = os.fork()
        if child == 0:
            try:
                monkeypatch.setattr(Session, "_finish", lambda *_: os._exit(3))
                session_module._finish_at_exit()
            finally:
                os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return True

    monkeypatch.setattr(recording, "dispatch", send)
    with report("train", quiet=True):
        pass
    assert codes == [0]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no alarms")
def test_an_alarm_while_a_block_ends_loses_no_report(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's time limit may be over at any moment of the end, as may be its user's patience."""

    class TooLateError(Exception):
        pass

    def ring(*_: object) -> None:
        raise TooLateError

    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    before, rang = signal.signal(signal.SIGALRM, ring), 0
    try:
        for number in range(8):
            try:
                with report("train", quiet=True) as perf:
                    time.sleep(0.02)
                    signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.0018 * number)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except TooLateError:
                rang += 1
            assert session_module.current() is None
            assert "MLFLOW_PERF_SPOOL" not in os.environ
            assert not list(tmp_path.glob("*-spool-*"))
            list(recover(tmp_path))
            run = run_of(perf.run_id)
            assert (run.info.status, "duration_sec" in run.data.metrics) == ("FINISHED", True)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rang


def test_a_block_waits_while_that_of_another_thread_begins(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing MLflow takes seconds, and what ended before the report began is in no report."""
    outer, asked, begin = report("outer", quiet=True), threading.Event(), threading.Event()
    start = recording.Recording.start

    def start_late(of: recording.Recording, *given: Any, **options: Any) -> None:
        asked.set()
        assert begin.wait(60)
        start(of, *given, **options)

    monkeypatch.setattr(recording.Recording, "start", start_late)
    first = threading.Thread(target=outer.__enter__)
    first.start()
    assert asked.wait(60)
    second = threading.Thread(target=report("inner")(lambda: None))
    second.start()
    second.join(0.2)
    begin.set()
    first.join()
    second.join()
    outer.__exit__(None, None, None)
    assert outer.document.nodes[0].operations["times"]["inner"]["count"] == 1


def test_a_block_that_outlives_the_one_around_it_is_named(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks and threads do so. One line says that its time is missing."""
    for _ in range(2):
        outer, inner = report("outer", quiet=True), report("inner")
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)
        inner.__exit__(None, None, None)
        assert not outer.document.nodes[0].operations.get("times")
    (record,) = caplog.records
    assert record.message == (
        "The block 'inner' has no report: it began inside 'outer', which ended before it; "
        "put one block around both."
    )


def test_an_inner_block_that_names_another_run_logs_there_without_a_report(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The job's own figures go to the run that it named; one line names both."""
    mine = mlflow.start_run()
    mlflow.end_run()
    with report("around", quiet=True) as perf, report("apart", run_id=mine.info.run_id) as other:
        assert other.run_id == mine.info.run_id != perf.run_id
    (record,) = caplog.records
    assert f"it names the run {mine.info.run_id}, but began inside 'around'" in record.message
    assert str(perf.run_id) in record.message


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda perf: pickle.loads(pickle.dumps(perf))])
def test_a_copy_of_a_session_records_as_it_does(
    store: str, copy_of: Callable[[Session], Any]
) -> None:
    """A function that uses it can be sent to a pool of processes."""
    with report("train", quiet=True) as perf:
        copied = copy_of(perf)
        assert copied.run_id == perf.run_id is not None
        with copied.time("work"):
            copied.add_counter("rows", 3)
    operations = perf.document.nodes[0].operations
    assert operations["times"]["work"]["count"] == 1
    assert operations["counters"] == {"rows": 3}


def test_operations_are_in_metrics_and_document(store: str) -> None:
    """Times, counters and attributes of the block reach the run."""
    with mlflow_perf.report("train") as perf:
        with perf.time("load"):
            pass
        with mlflow_perf.time("anywhere"):
            pass
        perf.add_time("step", 5.0)
        perf.add_time("step", 7.0)
        perf.add_counter("rows", 1000)
        perf.add_attribute("dataset", "higgs")
    metrics = run_of(perf.run_id).data.metrics
    assert metrics["ops/step/count"] == 2.0
    assert metrics["ops/step/total_ms"] == 12.0
    assert {"ops/load/total_ms", "ops/anywhere/total_ms"} <= metrics.keys()
    assert "higgs" in json.dumps(mlflow_perf.load(str(perf.run_id)).nodes[0].operations)


def test_a_decorator_without_parentheses_is_refused() -> None:
    """It would be a session that is named like the function, and the function would be gone."""
    with pytest.raises(SettingError, match=r"write @mlflow_perf.report\(\)"):
        report(len)  # type: ignore[arg-type]


def test_disabled_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With MLFLOW_PERF_DISABLE the block runs and nothing else happens."""
    monkeypatch.setenv("MLFLOW_PERF_DISABLE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with mlflow_perf.report("train") as perf:
        perf.add_counter("rows")
        with perf.time("x"):
            pass
    assert perf.run_id is None
    assert perf.summary == {}
    assert mlflow_perf.report("x")(burn) is burn


def test_a_server_that_refuses_costs_one_warning_and_the_journal_keeps_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Without a server the job runs, ends soon, and its report lies in the journal."""
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # it takes the variable away, too
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_PERF_EXIT_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path / "state"))
    begin = time.monotonic()
    with mlflow_perf.report("train") as perf, caplog.at_level(logging.WARNING):
        burn(0.02)
    assert time.monotonic() - begin < 10
    assert perf.run_id is None
    assert perf.summary["duration_sec"] > 0
    assert "mlflow-perf recover" in caplog.text
    (journal,) = (tmp_path / "state").glob("*.journal")
    assert journal.stat().st_size > 0


def test_a_run_is_a_quiet_guest(
    store: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow gets few metrics and the standard error one line; the JSON has everything."""
    run_ids = []
    for setting in ("default", "all"):
        with mlflow_perf.report("guest", metrics=setting, quiet=setting == "all") as perf:
            with perf.time("once"):
                pass
            for _ in range(2):
                with perf.time("twice"):
                    pass
        run_ids.append(perf.run_id)
    few, every = (run_of(run_id).data.metrics for run_id in run_ids)
    assert {key for key in few if key.startswith("ops/")} == {
        *("ops/once/total_ms", "ops/twice/count", "ops/twice/total_ms", "ops/twice/p95_ms")
    }
    assert len([key for key in few if not key.startswith(("ops/", "run_"))]) <= 40
    assert {"ops/once/p99_ms", "node_used_cpu_hours"} <= every.keys()
    assert run_ids[0] is not None
    assert {"ops/once/p99_ms", "node_used_cpu_hours"} <= (
        mlflow_perf.load(run_ids[0]).nodes[0].summary.keys()
    )
    [line] = [text for text in capfd.readouterr().err.splitlines() if "mlflow-perf: " in text]
    assert line.startswith("mlflow-perf: guest | ")
    assert line.endswith(f"run {run_ids[0]} | mlflow-perf show {run_ids[0]}")


def test_a_note_of_a_person_is_never_touched(store: str) -> None:
    """The overview gets our note only where there is none."""
    with mlflow.start_run(description="mine") as run:
        with mlflow_perf.report("train"):
            pass
        assert run_of(run.info.run_id).data.tags["mlflow.note.content"] == "mine"
    with mlflow_perf.report("train") as perf:
        pass
    assert "train" in run_of(perf.run_id).data.tags["mlflow.note.content"]


@pytest.mark.e2e
def test_over_http_the_same_arrives(server: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Against a real server: metrics, tags, artifacts and the status of the own run."""
    with mlflow_perf.report("train") as perf:
        burn(0.05)
    run = run_of(perf.run_id)
    assert KEYS - run.data.metrics.keys() <= {"total_disk_io_read_mb", "total_disk_io_write_mb"}
    assert run.info.status == "FINISHED"
    assert run.info.end_time >= run.info.start_time
    assert mlflow_perf.load(str(perf.run_id)).nodes[0].summary == pytest.approx(perf.summary)
    assert capfd.readouterr().out == "", "the job's standard output is not ours"


def test_handlers_are_restored_after_the_block(store: str) -> None:
    """The job sees its own handlers within the block and after it."""
    import signal

    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    with mlflow_perf.report("train"):
        within = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert within == before
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_another_thread_than_the_main_one_touches_no_signal(store: str) -> None:
    """A block in a thread installs nothing."""
    import signal

    seen = []

    def block() -> None:
        with mlflow_perf.report("train"):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.usefixtures("store")
def test_a_price_gives_the_cost() -> None:
    """The price of a node-hour is an argument as well as a variable; a wrong one is refused."""
    with mlflow_perf.report("train", node_price=36.0) as perf:
        burn(0.05)
    assert perf.summary["node_cost"] == pytest.approx(perf.summary["duration_sec"] / 100)
    with pytest.raises(ValueError, match="node_price"):
        mlflow_perf.report("train", node_price=-1.0)


@pytest.mark.usefixtures("store")
def test_a_country_reaches_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The country of the electricity is an argument as well as a variable."""
    asked: list[str | None] = []

    def make_carbon_reader(country: str | None) -> Reader:
        asked.append(country)
        raise SourceUnavailableError("not in this test")

    monkeypatch.setattr("mlflow_perf.readers.carbon.make_carbon_reader", make_carbon_reader)
    with mlflow_perf.report("train", carbon="FRA"):
        pass
    assert asked == ["FRA"]
    with pytest.raises(ValueError, match="carbon"):
        mlflow_perf.report("train", carbon="France")
