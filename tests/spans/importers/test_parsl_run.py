"""Parsl's run folders: today's text and JSON logs, and those of older versions."""

# ruff: noqa: E501 - lines of logs are as long as Parsl writes them

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.errors import SpansError

_OLD_PARSL_LOG = """\
1678101607.0 2023-03-06 11:20:07 MainProcess-1 X parsl.dataflow.dflow:1 __init__ INFO: Run id is: old-run
1678101607.1 2023-03-06 11:20:07 MainProcess-1 X parsl.dataflow.dflow:2 _ INFO: Task 0 submitted for App add, not waiting on any dependency
1678101607.1 2023-03-06 11:20:07 MainProcess-1 X parsl.dataflow.dflow:2 _ INFO: Task 1 submitted for App add, waiting on task 0
1678101607.2 2023-03-06 11:20:07 MainProcess-1 X parsl.dataflow.dflow:3 _ INFO: Parsl task 0 try 0 launched on executor any label with executor id 1
1678101607.2 2023-03-06 11:20:07 MainProcess-1 X parsl.dataflow.dflow:4 _ DEBUG: Task 0 changing state from pending to launched
"""
# Local times only, as Parsl wrote them until 2023.
_OLD_INTERCHANGE = """\
2023-03-06 11:20:07.190 interchange:485 HTEX-Interchange(9) MainThread _ [DEBUG]  Sent tasks: [1, 2] to manager b'4bf9bf8c1848'
2023-03-06 11:20:08.040 interchange:533 HTEX-Interchange(9) MainThread _ [DEBUG]  Removing task 1 from manager record b'4bf9bf8c1848'
2023-03-06 11:20:08.041 interchange:533 HTEX-Interchange(9) MainThread _ [DEBUG]  Removing task one from manager
"""
_OLD_MANAGER = """\
2023-03-06 11:20:07.200 parsl:304 18 Task-Puller [DEBUG]  Got executor tasks: [1, 2], cumulative count of tasks: 2
"""
_OLD_WORKER = """\
2023-03-06 11:20:07.249 worker_log:597 18 MainThread [INFO]  Received executor task 1
2023-03-06 11:20:07.982 worker_log:615 18 MainThread [INFO]  Completed executor task 1
2023-03-06 11:20:07.983 worker_log:626 18 MainThread [INFO]  All processing finished for executor task 1
"""
_WORK_QUEUE_LOG = """\
1668431173.0 2022-11-14 05:06:13 P T parsl.dataflow.dflow:1 __init__ INFO: Run id is: wq-run
1668431173.1 2022-11-14 05:06:13 P T parsl.dataflow.dflow:2 _ INFO: Parsl task 7 try 1 launched on executor WQ with executor id 3
1668431173.2 2022-11-14 05:06:13 P T parsl.executors.workqueue.executor:9 _ INFO: {submitted}
1668431175.9 2022-11-14 05:06:15 P T parsl.executors.workqueue.executor:9 _work_queue_submit_wait DEBUG: {completed}
"""


def _events(db: Path, span_type: str) -> list[tuple[str, float]]:
    rows = spans.sql(
        db,
        "SELECT e.type AS type, e.time AS time FROM event e JOIN span s ON s.uuid = e.span_uuid"
        " WHERE s.type = ? ORDER BY e.time",
        [span_type],
    )
    return [(row["type"], row["time"]) for row in rows]


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A run as Parsl of March 2023 logged it, on a machine five hours behind UTC."""
    run = tmp_path / "000"
    manager = run / "any label" / "block-0" / "4bf9bf8c1848"
    manager.mkdir(parents=True)
    # 11:20:07 local is 16:20:07 UTC.
    text = _OLD_PARSL_LOG.replace("16781016", "16781196")
    (run / "parsl.log").write_text(text)
    (run / "any label" / "interchange.log").write_text(_OLD_INTERCHANGE)
    (manager / "manager.log").write_text(_OLD_MANAGER)
    (manager / "worker_0.log").write_text(_OLD_WORKER)
    return run


def test_logs_of_older_versions(old_run: Path, spans_of: Callable[..., Path]) -> None:
    """Local times take the offset of the main log; a list of tasks is an event of each."""
    db = spans_of(old_run)
    start = 1678119607.0
    assert _events(db, "parsl.executor.htex.interchange.task") == [
        ("interchange_to_manager", start + 0.19),
        ("interchange_to_manager", start + 0.19),
        ("interchange_removing_task", start + 1.04),
    ]
    assert [name for name, _ in _events(db, "parsl.executor.htex.worker.task")] == [
        "worker_received_task",
        "worker_completed_task",
        "worker_all_finished_task",
    ]
    assert _events(db, "parsl.rundir.task") == [("launched", start + 0.2)]


def test_unknown_wording_is_counted_and_named(old_run: Path, tmp_path: Path, utc: None) -> None:
    """A line that has the right words and goes on in another way is not skipped in silence."""
    (result,) = spans.import_sources(old_run, tmp_path / "db")
    assert len(result.unread) == 1
    ((wording, count),) = result.unread.items()
    assert count == 1
    assert "Removing task one" in wording


def test_levels_of_an_executor_are_bound(old_run: Path, spans_of: Callable[..., Path]) -> None:
    """Try, interchange, manager and worker hang together, and the worker's span holds its task."""
    graph = spans.type_graph(spans_of(old_run))
    pairs = {
        (r["from"].rpartition("htex.")[2], r["to"].rpartition("htex.")[2])
        for r in graph["relations"]
    }
    assert pairs == {
        ("parsl.rundir.workflow", "parsl.rundir.task"),
        ("parsl.rundir.task", "parsl.rundir.try"),
        ("parsl.rundir.try", "interchange.task"),
        ("interchange.task", "manager.task"),
        ("manager.task", "worker.task"),
        ("manager", "worker"),
        ("manager", "manager.task"),
        ("worker", "worker.task"),
    }


def test_names_and_dependencies_come_from_the_log(old_run: Path, spans_of: Any) -> None:
    """Without a monitoring database, the log gives a task's app and its dependencies."""
    db = spans_of(old_run)
    rows = spans.sql(
        db, "SELECT key, name FROM interval WHERE type = 'parsl.rundir.task' ORDER BY key"
    )
    assert rows == [{"key": 0, "name": "add"}, {"key": 1, "name": "add"}]
    assert spans.sql(db, "SELECT count(*) AS n FROM dependency") == [{"n": 1}]


def test_worker_logs_alone_are_bound_to_the_try(old_run: Path, spans_of: Any) -> None:
    """With `worker_debug` off only workers tell of tasks: the try holds theirs directly."""
    (old_run / "any label" / "interchange.log").write_text(
        "2023-03-06 11:20:07.190 interchange:1 started\n"
    )
    (old_run / "any label" / "block-0" / "4bf9bf8c1848" / "manager.log").unlink()
    db = spans_of(old_run)
    graph = spans.type_graph(db)
    assert {"parsl.rundir.try"} == {
        r["from"]
        for r in graph["relations"]
        if r["to"].endswith("worker.task") and "htex" not in r["from"]
    }
    (unread,) = spans.sql(db, "SELECT unread FROM source")
    assert "worker_debug" in unread["unread"]


@pytest.mark.parametrize(
    ("submitted", "completed"),
    [
        (
            "Executor task 3 submitted as Work Queue task 4",
            "Completed Work Queue task 4, executor task 3",
        ),
        (
            "Executor task 3 submitted to Work Queue with Work Queue task id 4",
            "Completed WorkQueue task 4, parsl executor task 3",
        ),
        ("Task 3 submitted to WorkQueue with id 4", "Completed WorkQueue task 4, parsl task 3"),
    ],
)
def test_work_queue_tasks_of_each_generation(
    tmp_path: Path, spans_of: Any, submitted: str, completed: str
) -> None:
    """Parsl worded the pairing of its tasks with Work Queue's in three ways."""
    run = tmp_path / "000"
    (run / "WQ" / "function_data" / "0003").mkdir(parents=True)
    (run / "parsl.log").write_text(_WORK_QUEUE_LOG.format(submitted=submitted, completed=completed))
    (run / "WQ" / "transaction_log").write_text(
        "1668431173100000 1 MANAGER START\n1668431173300000 1 TASK 4 WAITING f FIRST_RESOURCES {}\n"
    )
    (run / "WQ" / "function_data" / "0003" / "log").write_text(
        "1668431174.0 META_PATH os\n1668431174.5 EXECUTEFUNCTION\n"
    )
    db = spans_of(run)
    (ordering,) = spans.sequences(db, "parsl.rundir.try")
    assert [e["event_type"] for e in ordering["events"]] == [
        "WAITING",
        "EXECUTEFUNCTION",
        "executor_completed",
    ]


def test_two_runs_in_one_log_are_refused(tmp_path: Path) -> None:
    """Their tasks have the same numbers: half right would be wrong."""
    run = tmp_path / "000"
    run.mkdir()
    (run / "parsl.log").write_text(_OLD_PARSL_LOG + _OLD_PARSL_LOG.replace("old-run", "new-run"))
    with pytest.raises(SpansError, match="holds 2 runs"):
        spans.import_sources(run, tmp_path / "db")


def test_text_and_json_logs_tell_the_same(make: Any, tmp_path: Path, utc: None) -> None:
    """The same workflow, logged in both ways, has the same kinds of events."""
    kinds = []
    for kind in ("text", "json"):
        db = tmp_path / f"{kind}.sqlite3"
        spans.import_sources(make.recorded(kind, tmp_path) / "000", db)
        rows = spans.sql(
            db,
            "SELECT DISTINCT s.type AS span, e.type AS event FROM event e"
            " JOIN span s ON s.uuid = e.span_uuid ORDER BY 1, 2",
        )
        kinds.append(rows)
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) > 10


def test_a_runinfo_folder_holds_all_of_it(make: Any, tmp_path: Path, utc: None) -> None:
    """A folder is searched: the database comes first, then its runs."""
    results = spans.import_sources(make.recorded("text", tmp_path), tmp_path / "db")
    assert [r.importer for r in results] == ["parsl-monitoring", "parsl-run"]


def test_bytes_that_are_no_text_do_no_harm(old_run: Path, spans_of: Any) -> None:
    """A log with another encoding, and with zeros where a disk was full, is read around them."""
    log = old_run / "parsl.log"
    noise = "café\n".encode("latin-1") + b"\0" * 100 + b"\n\xff\xfe launched on executor \n"
    log.write_bytes(noise + log.read_bytes())
    db = spans_of(old_run)
    assert {"type": "parsl.rundir.task", "spans": 2, "events": 1} in spans.types(db)
