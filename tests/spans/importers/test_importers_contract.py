"""One contract that every importer keeps."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.errors import SpansError
from mlflow_perf.spans import import_sources
from mlflow_perf.spans.importers.base import Importer, read_head
from mlflow_perf.spans.importers.registry import IMPORTERS

_METRICS = """\
1669383194.390360 2022-11-25 13:33:14 {name} DEBUG: METRIC STRATEGY htex active_tasks=3 blocks=2
1669383195.390360 2022-11-25 13:33:15 {name} DEBUG: nothing of interest
1669383196.500000 2022-11-25 13:33:16 {name} DEBUG: METRIC STRATEGY htex active_tasks=5 blocks=2
"""


def _monitoring(make: Any, folder: Path, which: int) -> Path:
    path: Path = make.simple_monitoring(folder / "monitoring.db", run=f"run-{which}")
    return path


def _parsl_run(make: Any, folder: Path, which: int) -> Path:
    path: Path = make.recorded(("text", "json")[which], folder) / "000"
    return path


def _workqueue(make: Any, folder: Path, which: int) -> Path:
    text = (make.data / "transaction_log").read_text("utf-8")
    path = folder / "transaction_log"
    path.write_text(text.replace("17951969", f"1795197{which}"), "utf-8")
    return path


def _metric_lines(_make: Any, folder: Path, which: int) -> Path:
    path = folder / "any.log"
    path.write_text(_METRICS.format(name=f"part-{which}"), "utf-8")
    return path


def _perf_document(_make: Any, folder: Path, which: int) -> Path:
    node = {
        "node": {"index": 0, "hostname": "node-1", "cpu_count": 4},
        "component": "train",
        "run_id": f"{which}" * 32,
        "status": "FINISHED",
        "started": 1795000000.0,
        "duration_sec": 2.5,
        "summary": {"cpu_avg_utilization_pct": 41.2},
        "reports": {"timestamp": [1795000001.0, 1795000002.0], "io_stall_pct": [3.0, None]},
        "operations": {"times": {"load": {"count": 2, "avg_time_ms": 1.5}}},
    }
    path = folder / "node-0.json"
    path.write_text(json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": node}}), "utf-8")
    return path


def _otlp(_make: Any, folder: Path, which: int) -> Path:
    def span(key: str, parent: str, name: str, start: int, end: int) -> dict[str, Any]:
        return {
            "traceId": f"{which}" * 32,
            "spanId": key,
            "parentSpanId": parent,
            "name": name,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(end),
            "attributes": [{"key": "rows", "value": {"intValue": "7"}}],
            "events": [{"timeUnixNano": str(start + 10_000), "name": "halfway"}],
        }

    spans = [
        span("a", "", "GET /", 10**18, 10**18 + 10**9),
        span("b", "a", "query", 10**18, 10**18 + 10**8),
    ]
    document = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": spans}]}]}
    path = folder / "trace.json"
    path.write_text(json.dumps(document), "utf-8")
    return path


def _chrome(_make: Any, folder: Path, which: int) -> Path:
    events = [
        {
            "ph": "X",
            "name": f"outer-{which}",
            "cat": "step",
            "ts": 1000,
            "dur": 500,
            "pid": 1,
            "tid": 1,
        },
        {"ph": "B", "name": "inner", "cat": "part", "ts": 1100, "pid": 1, "tid": 1},
        {"ph": "i", "name": "mark", "ts": 1150, "pid": 1, "tid": 1},
        {"ph": "E", "ts": 1200, "pid": 1, "tid": 1},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "worker"}},
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), "utf-8")
    return path


def _mlflow_store(_make: Any, folder: Path, which: int) -> Path:
    path = folder / "mlflow.db"
    db = sqlite3.connect(path)
    db.executescript(
        "CREATE TABLE experiments (experiment_id INTEGER);"
        "CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time INTEGER,"
        " end_time INTEGER, lifecycle_stage TEXT);"
        "CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);"
        "CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT,"
        " step INTEGER, is_nan INTEGER);"
        "CREATE TABLE trace_info (request_id TEXT, timestamp_ms INTEGER,"
        " execution_time_ms INTEGER, status TEXT);"
        "CREATE TABLE trace_request_metadata (key TEXT, value TEXT, request_id TEXT);"
        "CREATE TABLE spans (trace_id TEXT, span_id TEXT, parent_span_id TEXT, name TEXT,"
        " type TEXT, start_time_unix_nano INTEGER, end_time_unix_nano INTEGER, status TEXT);"
    )
    parent, child = f"p{which}", f"c{which}"
    rows = [
        (parent, "flow", 1000, 9000, "active"),
        (child, "step", 2000, 3000, "active"),
        ("x", "gone", 1, 2, "deleted"),
    ]
    db.executemany("INSERT INTO runs VALUES (?, ?, 'FINISHED', ?, ?, ?)", rows)
    db.execute("INSERT INTO tags VALUES ('mlflow.parentRunId', ?, ?)", (parent, child))
    db.execute("INSERT INTO metrics VALUES ('loss', 0.5, 2500, ?, 0, 0)", (child,))
    db.execute("INSERT INTO trace_info VALUES (?, 2100, 50, 'OK')", (f"t{which}",))
    db.execute(
        "INSERT INTO trace_request_metadata VALUES ('mlflow.sourceRun', ?, ?)", (child, f"t{which}")
    )
    db.execute(
        "INSERT INTO spans VALUES (?, 's', NULL, 'f', 'LLM', 2100000000, 2150000000, 'OK')",
        (f"t{which}",),
    )
    db.commit()
    db.close()
    return path


def _dnpcsql(_make: Any, folder: Path, which: int) -> Path:
    path = folder / "dnpc.sqlite3"
    db = sqlite3.connect(path)
    db.executescript(
        "CREATE TABLE span (uuid TEXT PRIMARY KEY, type TEXT NOT NULL, note TEXT);"
        "CREATE TABLE event (uuid TEXT PRIMARY KEY, span_uuid TEXT, time TEXT NOT NULL,"
        " type TEXT NOT NULL, note TEXT);"
        "CREATE TABLE subspan (superspan_uuid TEXT, subspan_uuid TEXT, key TEXT, note TEXT);"
        "CREATE TABLE facet (left_uuid TEXT, right_uuid TEXT, note TEXT);"
    )
    spans = [
        (f"{which}-task", "parsl.monitoring.task"),
        (f"{which}-try", "parsl.monitoring.try"),
        (f"{which}-log", "parsl.rundir.task"),
    ]
    db.executemany("INSERT INTO span VALUES (?, ?, 'a note')", spans)
    events = [
        ("1", "task", "1678101607.25", "invoked"),
        ("2", "try", "1678101607.5", "TWICE"),
        ("3", "try", "1678101607.5", "TWICE"),
    ]
    db.executemany(
        "INSERT INTO event VALUES (?, ?, ?, ?, NULL)",
        [(f"{which}-{n}", f"{which}-{span}", at, kind) for n, span, at, kind in events],
    )
    db.execute("INSERT INTO subspan VALUES (?, ?, '0', NULL)", (f"{which}-task", f"{which}-try"))
    db.execute("INSERT INTO facet VALUES (?, ?, NULL)", (f"{which}-log", f"{which}-task"))
    db.commit()
    db.close()
    return path


_SOURCES: dict[str, Callable[[Any, Path, int], Path]] = {
    "parsl-monitoring": _monitoring,
    "parsl-run": _parsl_run,
    "workqueue": _workqueue,
    "metric-lines": _metric_lines,
    "perf-document": _perf_document,
    "otlp": _otlp,
    "chrome-trace": _chrome,
    "mlflow-store": _mlflow_store,
    "dnpcsql": _dnpcsql,
}
# Read over the network from a tracking server: `test_mlflow.py` takes it through the rules.
_ELSEWHERE = {"mlflow-run"}

pytestmark = pytest.mark.usefixtures("utc")


@pytest.fixture(params=sorted(_SOURCES))
def kind(request: pytest.FixtureRequest) -> str:
    """Each importer's name."""
    return str(request.param)


@pytest.fixture
def source(kind: str, make: Any, tmp_path: Path) -> Callable[[int], Path]:
    """Make one of two sources of the kind, each in a folder of its own."""

    def build(which: int = 0) -> Path:
        folder = tmp_path / f"{kind}-{which}"
        folder.mkdir()
        return _SOURCES[kind](make, folder, which)

    return build


def contents(db: Path) -> dict[str, list[Any]]:
    """Return what a database tells, in words, so that two can be compared."""
    connection = sqlite3.connect(db)
    queries = {
        "span": "SELECT type, key, name, host, run, attributes FROM interval",
        "event": (
            "SELECT i.type, i.key, i.run, e.time, e.type FROM event e"
            " JOIN interval i ON i.uuid = e.span_uuid"
        ),
        "subspan": (
            "SELECT a.type, a.key, b.type, b.key, s.key FROM subspan s"
            " JOIN interval a ON a.uuid = superspan_uuid JOIN interval b ON b.uuid = subspan_uuid"
        ),
        "facet": "SELECT count(*) FROM facet",
        "dependency": "SELECT count(*) FROM dependency",
        "metric": (
            "SELECT i.key, m.time, m.name, m.value FROM metric m"
            " JOIN interval i ON i.uuid = m.span_uuid"
        ),
    }
    found = {name: sorted(map(repr, connection.execute(q))) for name, q in queries.items()}
    connection.close()
    return found


def files_of(source: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file of a source's folder, its bytes and when it was written."""
    folder = source.parent
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in paths}


def test_every_importer_is_taken_through_the_contract() -> None:
    """Each importer has a source here, or a test elsewhere."""
    names = [importer.name for importer in IMPORTERS]
    assert sorted(names) == sorted({*_SOURCES, *_ELSEWHERE})
    assert all(isinstance(importer, Importer) for importer in IMPORTERS)


def test_exactly_one_importer_recognises_a_source(kind: str, source: Any) -> None:
    """A source is recognised by the importer of its kind and by no other."""
    path = source()
    head = read_head(path)
    assert [i.name for i in IMPORTERS if i.recognises(path, head)] == [kind]


def test_an_import_finds_spans_and_events(kind: str, source: Any, tmp_path: Path) -> None:
    """Importing gives spans, events, and no word that was not understood."""
    (result,) = import_sources(source(), tmp_path / "db")
    assert result.importer == kind
    assert result.spans > 0
    assert result.events > 0
    assert result.unread == {}


def test_importing_again_changes_nothing(source: Any, tmp_path: Path) -> None:
    """An unchanged source is left out; a copy of it elsewhere holds nothing new."""
    path = source()
    db = tmp_path / "db"
    import_sources(path, db)
    before = contents(db)
    assert [r.unchanged for r in import_sources(path, db)] == [True]
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)
    (again,) = import_sources(copy, db)
    assert (again.spans, again.events, again.unchanged) == (0, 0, False)
    assert contents(db) == before


def test_the_source_is_never_written_to(source: Any, tmp_path: Path) -> None:
    """After an import each file is the same, none is new, none is touched."""
    path = source()
    before = files_of(path)
    import_sources(path, tmp_path / "db")
    assert files_of(path) == before


def test_several_runs_share_a_database(source: Any, tmp_path: Path) -> None:
    """Two runs in one database hold what each holds alone, in whichever order they came."""
    first, second = source(0), source(1)
    import_sources([first, second], tmp_path / "forth")
    import_sources([second, first], tmp_path / "back")
    import_sources(first, tmp_path / "one")
    import_sources(second, tmp_path / "two")
    both, one, two = (contents(tmp_path / n) for n in ("forth", "one", "two"))
    assert contents(tmp_path / "back") == both
    for table in ("span", "event", "subspan", "metric"):
        assert both[table] == sorted(one[table] + two[table])


def test_relations_have_both_ends(source: Any, tmp_path: Path) -> None:
    """No event, relation or figure belongs to a span that is not there."""
    import_sources(source(), tmp_path / "db")
    db = sqlite3.connect(tmp_path / "db")
    ends = {
        "event_row": ["span_id"],
        "subspan_row": ["super_id", "sub_id"],
        "facet_row": ["left_id", "right_id"],
        "dependency_row": ["span_id", "needs_id"],
        "metric_row": ["span_id"],
    }
    for table, columns in ends.items():
        for column in columns:
            query = f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM span_row)"
            assert db.execute(query).fetchone() == (0,), (table, column)
    db.close()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_cut_source_is_read_as_far_as_it_goes(
    kind: str, source: Any, share: float, tmp_path: Path
) -> None:
    """A file cut in the middle gives a part of the whole, or an error of ours; nothing else."""
    path = source()
    import_sources(path, tmp_path / "whole")
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    for file in files:
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * share)])
    try:
        results = import_sources(path, tmp_path / "part")
    except SpansError:
        return
    part, whole = contents(tmp_path / "part"), contents(tmp_path / "whole")
    assert len(part["event"]) <= len(whole["event"])
    if kind in ("workqueue", "metric-lines", "parsl-run"):
        assert set(part["event"]) <= set(whole["event"])
        assert any(r.unread for r in results)


def test_a_failed_import_leaves_the_database_as_it_was(
    kind: str, source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that fails halfway is undone; the sources before it stay."""
    good, other = source(0), source(1)
    db = tmp_path / "db"
    import_sources(good, db)
    before = contents(db)
    importer = next(i for i in IMPORTERS if i.name == kind)
    load = type(importer).load

    def fail(self: Any, path: Path, store: Any) -> None:
        load(self, path, store)
        raise SpansError("This failed on purpose.")

    monkeypatch.setattr(type(importer), "load", fail)
    with pytest.raises(SpansError, match="on purpose"):
        import_sources(other, db)
    assert contents(db) == before
    monkeypatch.undo()
    assert import_sources(other, db)[0].spans > 0


@pytest.mark.parametrize(
    ("name", "text", "unread"),
    [
        (
            "chrome",
            '{"traceEvents": [{"ph": "X", "ts": 1e999, "name": "a"}, {"ph": "X", "ts": 5}]}',
            1,
        ),
        (
            "chrome",
            '{"traceEvents": [null, {"ph": "E", "ts": 5}, {"ph": "B", "ts": 1, "args": []}]}',
            1,
        ),
        ("chrome", '[{"ph": "X", "ts": 1, "dur": 2, "name": "\\ud800"}, {"ph": "X", "ts": 2', 0),
        ("otlp", '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}, null]}]}]}', 1),
        ("otlp", '{"resourceSpans": []}\n{"resourceSpans": [\n', 1),
        ("perf", '{"schema": "mlflow-perf/1", "nodes": {"0": null, "1": {"started": "soon"}}}', 2),
        (
            "perf",
            '{"schema": "mlflow-perf/9", "nodes": {"0": {"started": 1, "reports": {"x": [1]}}}}',
            0,
        ),
        ("metric", "1.0 x\n1669383194.3 a METRIC b c d=nan e=f g=1\n", 2),
        ("metric", "2022-13-45 99:99:99 a METRIC b c d=1\n", 1),
        (
            "workqueue",
            "1795196931445073 1 TASK x WAITING f\n1795196931445073 1 TASK 1 WAITING f\n",
            1,
        ),
        ("workqueue", "1795196931445073 1 TASK 1 WAITING f\nnonsense\n", 1),
    ],
)
def test_what_cannot_be_is_counted(name: str, text: str, unread: int, tmp_path: Path) -> None:
    """A part that is of no sense is counted by name; the rest is imported."""
    path = tmp_path / f"{name}.txt"
    path.write_text(text, "utf-8")
    (result,) = import_sources(path, tmp_path / "db")
    assert sum(result.unread.values()) == unread


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [{"ph"',
        '{"schema": "mlflow-perf/1", "nodes": []}',
        '{"resourceSpans": 5',
        "[" * 5000,
    ],
)
def test_an_unknown_source_is_one_line(text: str, tmp_path: Path) -> None:
    """JSON that is damaged, of another shape, or endlessly nested is an error of one line."""
    path = tmp_path / "x.json"
    path.write_text(text, "utf-8")
    with pytest.raises(SpansError) as caught:
        import_sources(path, tmp_path / "db")
    assert "\n" not in str(caught.value)
