"""Chrome traces and Parquet."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spans.conftest import HOSTILE

from mlflow_perf import spans
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Store


def test_no_span_covers_another_in_the_chrome_trace(real: Path, tmp_path: Path) -> None:
    """On a lane one ends before the next begins; each process and lane has a name."""
    trace = json.loads(spans.to_chrome_trace(real, tmp_path / "trace.json").read_text("utf-8"))
    lanes = defaultdict(list)
    named = set()
    for event in trace["traceEvents"]:
        where = (event["pid"], event["tid"])
        if event["ph"] == "X":
            assert where in named
            lanes[where].append((event["ts"], event["ts"] + event["dur"], event["cat"]))
        elif event["name"] == "thread_name":
            named.add(where)
    assert len(lanes) > 5
    for intervals in lanes.values():
        ordered = sorted(intervals)
        assert all(a[1] <= b[0] for a, b in pairwise(ordered))
        assert len({kind for _, _, kind in intervals}) == 1


_times = st.tuples(st.integers(0, 40), st.integers(0, 9))


_placed = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(["x", "y"]), _times)


@settings(max_examples=25)
@given(st.lists(_placed, max_size=15))
def test_a_reader_that_nests_by_time_drops_and_misplaces_nothing(placed: list[Any]) -> None:
    """Perfetto nests the slices of a thread by time, and drops those that overlap in part.

    A span of no length, or one that starts where another ends, lies in nothing and holds nothing;
    no two processes have a thread of the same number.
    """
    with tempfile.TemporaryDirectory() as folder:
        db = spans.connect(Path(folder) / "db", write=True)
        store = Store(db)
        db.execute("BEGIN")
        for key, (host, span_type, (start, length)) in enumerate(placed):
            span = store.span(span_type, store.scope("s"), key, host=host)
            store.add_events((span, time, "e") for time in (start, start + length))
        db.execute("COMMIT")
        path = spans.to_chrome_trace(db, Path(folder) / "trace.json")
        db.close()
        trace = json.loads(path.read_text("utf-8"))["traceEvents"]
    slices = sorted((e for e in trace if e["ph"] == "X"), key=lambda e: int(e["ts"]))
    assert sorted(e["args"]["key"] for e in slices) == list(range(len(placed)))
    assert len({e["tid"] for e in slices}) == len({(e["pid"], e["tid"]) for e in slices})
    ended: dict[int, int] = {}
    for event in slices:
        assert ended.get(event["tid"], 0) <= event["ts"]
        ended[event["tid"]] = event["ts"] + event["dur"]


def test_a_try_is_named_by_its_task(real: Path, tmp_path: Path) -> None:
    """A span without a name takes the name of the span that it is part of."""
    trace = json.loads(spans.to_chrome_trace(real, tmp_path / "trace.json").read_text("utf-8"))
    names = {e["name"] for e in trace["traceEvents"] if e.get("cat") == "parsl.monitoring.try"}
    assert {"src", "flaky", "bad", "dep"} <= names


def test_a_chrome_trace_comes_back(real: Path, tmp_path: Path) -> None:
    """An exported trace can be imported again, with the same spans and times."""
    trace = spans.to_chrome_trace(real, tmp_path / "trace.json", events=True)
    spans.import_sources(trace, tmp_path / "back.sqlite3")
    there = {row["type"]: row["count"] for row in spans.durations(real)}
    back = {
        row["type"].removeprefix("chrome."): row
        for row in spans.durations(tmp_path / "back.sqlite3")
    }
    for kind, count in there.items():
        assert back[kind]["count"] >= count
    task = spans.durations(real, "parsl.monitoring.task")[0]
    assert back["parsl.monitoring.task"]["mean_s"] == pytest.approx(task["mean_s"])


def test_hostile_names_survive_the_exports(hostile: Path, tmp_path: Path) -> None:
    """In JSON they are escaped, in Parquet values."""
    trace = json.loads(spans.to_chrome_trace(hostile, tmp_path / "t.json").read_text("utf-8"))
    assert HOSTILE in {e["name"] for e in trace["traceEvents"]}
    parquet = pytest.importorskip("pyarrow.parquet")
    spans.to_parquet(hostile, tmp_path / "out")
    assert HOSTILE in parquet.read_table(tmp_path / "out" / "span.parquet")["type"].to_pylist()


def test_an_export_of_no_database_leaves_no_folder(tmp_path: Path) -> None:
    """An unreadable database is an error before a folder is created."""
    with pytest.raises(SpansError, match="no spans database"):
        spans.to_parquet(tmp_path / "none.sqlite3", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_parquet_of_several_databases_is_one_query(make: Any, tmp_path: Path, utc: None) -> None:
    """DuckDB reads many runs' files at once; `database` tells their spans apart."""
    duckdb = pytest.importorskip("duckdb")
    for name in ("monday", "tuesday"):
        source = make.simple_monitoring(tmp_path / f"{name}.db", run=name)
        spans.import_sources(source, tmp_path / f"{name}.sqlite3")
        spans.to_parquet(tmp_path / f"{name}.sqlite3", tmp_path / "lake" / name)
    query = f"""
        SELECT s.database, count(*), avg(b.time - a.time)
        FROM '{tmp_path}/lake/*/span.parquet' s
        JOIN '{tmp_path}/lake/*/event.parquet' a
            ON a.database = s.database AND a.span_uuid = s.uuid AND a.type = 'invoked'
        JOIN '{tmp_path}/lake/*/event.parquet' b
            ON b.database = s.database AND b.span_uuid = s.uuid AND b.type = 'returned'
        WHERE s.type = 'parsl.monitoring.task' GROUP BY 1 ORDER BY 1
    """
    assert duckdb.sql(query).fetchall() == [("monday", 3, 2.0), ("tuesday", 3, 2.0)]


def test_which_tasks_ran_while_a_node_was_stalled_on_io(
    make: Any, tmp_path: Path, utc: None
) -> None:
    """One query joins the workflow's spans to the resource figures that we collect."""
    node = {
        "node": {"index": 3, "hostname": "node-1"}, "component": "train", "started": 1795176000.0,
        "duration_sec": 10.0,
        "reports": {
            "timestamp": [1795176000.2, 1795176001.0, 1795176009.0],
            "io_stall_pct": [0.0, 35.0, 80.0],
        },
    }  # fmt: skip
    path = tmp_path / "node-3.json"
    path.write_text(json.dumps({"schema": "mlflow-perf/1", "nodes": {"3": node}}))
    source = make.simple_monitoring(tmp_path / "m.db")
    spans.import_sources([source, path], tmp_path / "db")
    query = """
        SELECT DISTINCT task.key AS task FROM metric
        JOIN interval node ON node.uuid = metric.span_uuid AND node.type = 'mlflow_perf.node'
        JOIN interval try ON try.type = 'parsl.monitoring.try' AND try.host = node.host
             AND metric.time BETWEEN try.start AND try.end
        JOIN subspan ON subspan.subspan_uuid = try.uuid
        JOIN interval task ON task.uuid = subspan.superspan_uuid
             AND task.type = 'parsl.monitoring.task'
        WHERE node.key = '3' AND metric.name = 'io_stall_pct' AND metric.value > 20 ORDER BY 1
    """
    assert spans.sql(tmp_path / "db", query) == [{"task": 0}]
