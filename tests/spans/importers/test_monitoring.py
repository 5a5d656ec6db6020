"""Parsl's monitoring.db."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.errors import SpansError
from mlflow_perf.spans import import_sources, sequences, sql, types

# dnpcsql's own query, word for word in its structure.
_DNPCSQL = """
with recursive
  descs(root_span_uuid, span_uuid) as (
    select span.uuid, span.uuid from span where span.type="parsl.monitoring.task"
    union
    select descs.root_span_uuid, subspan.subspan_uuid from subspan, descs
     where subspan.superspan_uuid = descs.span_uuid
    union
    select descs.root_span_uuid, facet.right_uuid from facet, descs
     where facet.left_uuid = descs.span_uuid
    union
    select descs.root_span_uuid, facet.left_uuid from facet, descs
     where facet.right_uuid = descs.span_uuid
  )
  select descs.root_span_uuid as root, event.time as time, span.type as span_type,
         event.type as event_type, event.uuid as uuid
    from descs, span, event
   where span.uuid = descs.span_uuid and event.span_uuid = span.uuid
order by root_span_uuid, event.time;
"""


_EPOCH = 1795176000.0  # 2026-11-20 12:00:00 UTC


@pytest.fixture
def simple(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """Three tasks of one second each."""
    return spans_of(make.simple_monitoring(tmp_path / "monitoring.db"))


def test_workflows_tasks_and_tries_become_spans(simple: Path) -> None:
    """Types and counts are dnpcsql's; nothing is made up for what a database does not tell."""
    assert types(simple) == [
        {"type": "parsl.monitoring.task", "spans": 3, "events": 6},
        {"type": "parsl.monitoring.try", "spans": 3, "events": 15},
        {"type": "parsl.monitoring.workflow", "spans": 1, "events": 2},
    ]


def test_the_ordering_has_the_exact_times(simple: Path) -> None:
    """Cumulative and single means, extremes and names are those of the rows."""
    (ordering,) = sequences(simple)
    assert ordering["count"] == 3
    steps = [
        (
            f"{e['span_type'].rpartition('.')[2]}/{e['event_type']}",
            e["cumulative_mean_s"],
            e["mean_s"],
        )
        for e in ordering["events"]
    ]
    assert [name for name, _, _ in steps] == [
        "task/invoked", "try/pending", "try/launched", "try/running", "try/running_ended",
        "task/returned", "try/exec_done",
    ]  # fmt: skip
    assert [c for _, c, _ in steps] == pytest.approx([0, 0.1, 0.2, 0.5, 1.5, 2.0, 2.1])
    assert [m for _, _, m in steps] == pytest.approx([0, 0.1, 0.1, 0.3, 1.0, 0.5, 0.1])
    assert ordering["events"][4]["min_s"] == pytest.approx(1.0)
    assert ordering["events"][4]["max_s"] == pytest.approx(1.0)


def test_sql_written_for_dnpcsql_gives_its_answers(simple: Path) -> None:
    """The recursive query of dnpcsql runs unchanged on the views, one row for each event."""
    rows = sql(simple, _DNPCSQL)
    assert len(rows) == 21
    assert len({row["uuid"] for row in rows}) == 21
    first = [row for row in rows if row["root"] == rows[0]["root"]]
    assert [row["event_type"] for row in first] == [
        e["event_type"] for e in sequences(simple)[0]["events"]
    ]
    assert float(first[0]["time"]) == _EPOCH


def test_views_have_dnpcsqls_columns(simple: Path) -> None:
    """The four views have the names and the columns of dnpcsql's tables, in their order."""
    columns = {
        "span": ["uuid", "type", "note"],
        "event": ["uuid", "span_uuid", "time", "type", "note"],
        "subspan": ["superspan_uuid", "subspan_uuid", "key", "note"],
        "facet": ["left_uuid", "right_uuid", "note"],
    }
    for view, names in columns.items():
        found = sql(simple, "SELECT name FROM pragma_table_info(?)", [view])
        assert [row["name"] for row in found] == names


def test_subspans_are_named_by_task_and_try(simple: Path) -> None:
    """The workflow holds its tasks by their ids, a task its tries by theirs, as text."""
    rows = sql(
        simple,
        "SELECT a.type AS upper, key FROM subspan JOIN span a ON a.uuid = superspan_uuid"
        " ORDER BY 1, 2",
    )
    assert [(r["upper"].rpartition(".")[2], r["key"]) for r in rows] == [
        ("task", "0"), ("task", "0"), ("task", "0"),
        ("workflow", "0"), ("workflow", "1"), ("workflow", "2"),
    ]  # fmt: skip


def test_the_dependencies_of_a_task_are_kept(simple: Path) -> None:
    """`task_depends` becomes dependencies, one for each task in it."""
    rows = sql(
        simple,
        "SELECT a.key AS task, b.key AS needs FROM dependency"
        " JOIN interval a ON a.uuid = span_uuid JOIN interval b ON b.uuid = needs_uuid ORDER BY 1",
    )
    assert rows == [{"task": 1, "needs": 0}, {"task": 2, "needs": 1}]


@pytest.mark.parametrize(
    ("depends", "count"),
    [("", 0), ("0", 1), ("0,1", 2), ("0, 1", 2), ("None", 0), ("0,x", 0), ("[0]", 0)],
)
def test_lists_of_dependencies_of_any_shape(
    make: Any, tmp_path: Path, spans_of: Any, depends: str, count: int
) -> None:
    """One, many or none; what is not a list of numbers is none, never an error."""
    rows = [(i, "f", make.at(i), make.at(i + 1), "" if i < 2 else depends) for i in range(3)]
    make.monitoring(tmp_path / "m.db", tasks=rows).close()
    db = spans_of(tmp_path / "m.db")
    assert sql(db, "SELECT count(*) AS n FROM dependency") == [{"n": count}]


def test_cpu_time_is_the_difference_within_a_worker_process(
    make: Any, tmp_path: Path, spans_of: Any
) -> None:
    """Parsl counts a worker's CPU time from its start: a try is given what was added in it."""
    path = make.simple_monitoring(tmp_path / "m.db", tasks=2)
    db = sqlite3.connect(path)
    samples = [(0, 1.0, 0.5, 10.0), (0, 1.4, 1.5, 13.0), (1, 1.6, 1.6, 13.0), (1, 2.0, 2.5, 17.0)]
    db.executemany(
        "INSERT INTO resource (try_id, task_id, run_id, timestamp, psutil_process_pid,"
        " psutil_process_time_user, psutil_process_time_system, psutil_process_memory_resident)"
        " VALUES (0, ?, ?, ?, 77, ?, 0, ?)",
        [
            (t, make.run, make.at(second), cpu, 1048576.0 * memory)
            for t, second, cpu, memory in samples
        ],
    )
    db.commit()
    db.close()
    rows = sql(
        spans_of(path),
        "SELECT i.key >> 16 AS task, m.name AS name, sum(value) AS total, max(value) AS peak"
        " FROM metric m JOIN interval i ON i.uuid = m.span_uuid GROUP BY 1, 2 ORDER BY 1, 2",
    )
    totals = {(r["task"], r["name"]): (r["total"], r["peak"]) for r in rows}
    assert totals[0, "cpu_s"][0] == pytest.approx(1.0)
    assert totals[1, "cpu_s"][0] == pytest.approx(1.0)
    assert totals[1, "memory_mb"][1] == 17.0


def test_a_database_that_grew_gives_what_is_new(make: Any, tmp_path: Path, utc: None) -> None:
    """A run imported while it goes on, then again at its end, is as if imported once."""
    path, db = tmp_path / "m.db", tmp_path / "db"
    source = make.monitoring(
        path, tasks=[(0, "f", make.at(0), None, "")], tries=[(0, 0, "", None)], completed=None
    )
    assert import_sources(path, db)[0].events == 2
    source.execute("UPDATE workflow SET time_completed = ?", (make.at(9),))
    source.execute("UPDATE task SET task_time_returned = ?", (make.at(5),))
    source.execute("UPDATE try SET hostname = 'node-1'")
    source.commit()
    source.close()
    (second,) = import_sources(path, db)
    assert (second.spans, second.events) == (0, 2)
    assert sql(db, "SELECT host FROM interval WHERE type LIKE '%.try'") == [{"host": "node-1"}]


def test_unknown_states_are_kept_and_broken_rows_counted(
    make: Any, tmp_path: Path, utc: None
) -> None:
    """A state of a later Parsl is an event; a row without a try or a time is counted by name."""
    path = make.simple_monitoring(tmp_path / "m.db", tasks=1)
    db = sqlite3.connect(path)
    rows = [(0, "it's new", make.at(9)), (0, "failed", "soon"), (5, "failed", make.at(9))]
    db.executemany(
        "INSERT INTO status VALUES (?, ?, ?, ?, 0)", [(t, s, w, make.run) for t, s, w in rows]
    )
    db.commit()
    db.close()
    (result,) = import_sources(path, tmp_path / "db")
    assert sql(tmp_path / "db", "SELECT count(*) AS n FROM event WHERE type = 'it''s new'") == [
        {"n": 1}
    ]
    assert result.unread == {"status row whose try, state or time is missing": 2}


def test_many_runs_in_one_database(make: Any, tmp_path: Path, spans_of: Any) -> None:
    """Tasks of the same number in two runs are two spans, each below its own workflow."""
    path = tmp_path / "m.db"
    for run in ("run-a", "run-b"):
        make.simple_monitoring(path, run=run)
    db = spans_of(path)
    assert [row["spans"] for row in types(db)] == [6, 6, 2]
    assert sequences(db)[0]["count"] == 6


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("DROP TABLE status", "no table `status`"),
        ("ALTER TABLE task DROP COLUMN task_func_name", "no column task_func_name"),
    ],
)
def test_another_schema_is_named(make: Any, tmp_path: Path, damage: str, words: str) -> None:
    """The error names the missing table or column, and nothing is imported."""
    path = make.simple_monitoring(tmp_path / "m.db")
    db = sqlite3.connect(path)
    db.execute(damage)
    db.close()
    with pytest.raises(SpansError, match=words):
        import_sources(path, tmp_path / "db")


def test_optional_tables_and_columns_may_be_missing(make: Any, tmp_path: Path, utc: None) -> None:
    """A database of an older Parsl, without what is not needed, imports."""
    path = make.simple_monitoring(tmp_path / "m.db")
    db = sqlite3.connect(path)
    for table in ("resource", "node", "block"):
        db.execute(f"DROP TABLE {table}")
    for column in ("task_fail_history", "task_joins", "hostname"):
        db.execute(f"ALTER TABLE try DROP COLUMN {column}")
    db.execute("ALTER TABLE task DROP COLUMN task_depends")
    db.close()
    (result,) = import_sources(path, tmp_path / "db")
    assert (result.spans, result.events) == (7, 23)


def test_a_locked_database_is_said_to_be(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer's exclusive lock gives one line, not a wait without end."""
    monkeypatch.setattr("mlflow_perf.spans.database.schema._BUSY_SEC", 0.05)
    monkeypatch.setattr("mlflow_perf.spans.importers.base._BUSY_SEC", 0.05)
    path = make.simple_monitoring(tmp_path / "m.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    with pytest.raises(SpansError, match="locked"):
        import_sources(path, tmp_path / "db")
    assert time.monotonic() - started < 20
    writer.close()


def test_a_recorded_run_has_its_blocks_nodes_and_resources(
    make: Any, tmp_path: Path, spans_of: Any
) -> None:
    """Blocks, nodes, resources, the join app and the retry are imported; dnpcsql ignored them."""
    folder = make.recorded("text", tmp_path)
    db = spans_of(folder / "monitoring.db")
    counts = {row["type"].rpartition(".")[2]: row["spans"] for row in types(db)}
    assert counts == {"workflow": 1, "task": 13, "try": 15, "block": 1, "node": 1}
    names = {row["name"] for row in sql(db, "SELECT DISTINCT name FROM metric")}
    assert names == {"cpu_s", "memory_mb", "memory_percent", "disk_read_mb", "disk_write_mb"}
    (cpu,) = sql(
        db,
        "SELECT max(total) AS most FROM (SELECT sum(value) AS total FROM metric m"
        " WHERE m.name = 'cpu_s' GROUP BY span_uuid)",
    )
    assert 0.15 < cpu["most"] < 0.6
