"""What a fuzzer found in the loaders, and what a hostile file, server or name may not do."""

from __future__ import annotations

import gzip
import json
import os
import re
import sqlite3
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from mlflow_perf import cli, spans
from mlflow_perf.analysis.markdown import escape, format_code
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.core.json_io import from_json
from mlflow_perf.errors import (
    DocumentError,
    MlflowPerfError,
    SettingError,
    SpansError,
    StepFailedError,
)
from mlflow_perf.integrations._scraped import Scraped
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.sketch import finite
from mlflow_perf.node import place as node
from mlflow_perf.publish.journal import FORMAT
from mlflow_perf.publish.recovery import read_journal
from mlflow_perf.readers.cgroup.limits import owned
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.transfers import NixlKVConnectorStats
from mlflow_perf.reports.html import render
from mlflow_perf.spans import import_sources, types
from mlflow_perf.spans.importers import chrome
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.load import _list_documents
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.run_handle import RunHandle
from mlflow_perf.web.choice import Choice

HUGE = 10**400
"""A whole number that no float holds."""


@pytest.mark.parametrize("value", [HUGE, -HUGE, float("inf"), float("nan"), True, "1", None, -1])
def test_only_numbers_that_floats_hold_are_taken(value: Any) -> None:
    """A figure that is no finite number of at least zero is refused by name."""
    with pytest.raises(ValueError, match="not a finite number"):
        finite(value)


@pytest.mark.parametrize(
    "data",
    [
        {"times": {"a": {"count": HUGE, "total_ms": 1}}},
        {"times": {"a": {"count": 1, "total_ms": HUGE}}},
        {"counters": {"a": float("inf")}},
        {"sketches": {"a": {"relative_error": 0.01, "bucket": [HUGE], "count": [1]}}},
    ],
)
def test_operations_of_endless_numbers_are_refused(data: dict[str, Any]) -> None:
    """Numbers beyond the floats in a document's operations are its author's error."""
    with pytest.raises(DocumentError):
        OperationMetrics.from_dict(data)


def test_a_counter_beyond_the_floats_comes_back() -> None:
    """A counter is a whole number of any size, which its document keeps."""
    metrics = OperationMetrics()
    metrics.add_counter("a", None, HUGE)
    again = OperationMetrics.from_dict(metrics.as_dict())
    assert again.as_dict() == metrics.as_dict()


@pytest.mark.parametrize(
    "data",
    [
        {"num_failed_transfers": HUGE},
        {"num_failed_transfers": [HUGE]},
        {"transfer_duration": [HUGE]},
        {"transfer_duration": {"count": 1, "total": HUGE, "min": 1, "max": 1, "samples": [1]}},
        {"transfer_duration": {"count": float("inf"), "total": 1}},
    ],
)
def test_transfers_of_endless_numbers_are_refused(data: dict[str, Any]) -> None:
    """Numbers beyond the floats in a document's transfers are its author's error."""
    with pytest.raises(DocumentError):
        NixlKVConnectorStats(data)


def test_a_document_of_endless_numbers_is_drawn() -> None:
    """A whole number beyond the floats becomes the largest float wherever it stands."""
    figures = {"duration_sec": HUGE, "node_cpu_hours": -HUGE, "of_a_reader": HUGE}
    block = {
        "started": HUGE,
        "duration_sec": HUGE,
        "summary": figures,
        "reports": {"timestamp": [HUGE, 1], "mem_percent": [HUGE, None]},
    }
    text = json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": block, "1": block}})
    document = PerfDocument.from_json(text)
    assert document.nodes[0].started == from_json("9" * 400) == -from_json("-" + "9" * 400)
    assert "</html>" in render(document)
    assert document.merge(document).run_summary


@pytest.mark.parametrize("times", [[-1e308, 1e308], [float("inf"), 1.0], [float("nan")] * 2])
def test_a_document_of_endless_times_is_drawn(times: list[float]) -> None:
    """Times whose difference no float holds are gaps of the curves."""
    reports = {"timestamp": times, "mem_percent": [1.0, float("inf")]}
    text = json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": {"reports": reports}}})
    assert "</html>" in render(PerfDocument.from_json(text))


@pytest.mark.parametrize("column", ["timestamp", "elapsed_sec", "mem_percent"])
@pytest.mark.parametrize("started", [float("nan"), float("inf")])
def test_a_document_without_a_start_is_drawn(column: str, started: float) -> None:
    """A start that is not a number counts as missing, even if other times exist."""
    node = {"started": started, "reports": {column: [1.0, 2.0], "cpu_pct_per_cpu_avg": [1, 2]}}
    text = json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": node}})
    assert "</html>" in render(PerfDocument.from_json(text))


def test_advice_on_endless_figures_has_an_end() -> None:
    """Figures that are infinite, or whose sum is, count as missing: no advice is made of them."""
    odd = 1.7e308
    summary = {"duration_sec": odd, "job_max_mem_mb": odd, "mem_limit_mb": odd, "oom_kills": 1.0}
    summary |= {"node_cpu_hours": odd, "job_max_cpu_cores": odd, "cpu_limit_cores": odd}
    facts = {"world_size": float("inf"), "count": 1e-300}
    node = NodeDocument(facts, summary=summary, started=-1e308, duration_sec=1e308)
    later = NodeDocument(summary=summary, started=1e308, duration_sec=1e308)
    runs = [
        PerfRun.from_document(name, PerfDocument({0: n})) for name, n in (("a", node), ("b", later))
    ]
    workflow = build_workflow(runs[0], runs)
    assert workflow is not None
    json.dumps(workflow.as_dict())
    size = right_size(runs)
    assert (size.cpus, size.memory_mb) == (None, None)
    assert any("no advice on memory" in line for line in size.evidence)


def test_an_endpoint_of_endless_numbers_is_read() -> None:
    """A figure of an endpoint that no float holds is left out, and the others are taken."""
    parser = pytest.importorskip("prometheus_client.parser")
    text = f"# TYPE a gauge\na {HUGE}\n# TYPE b gauge\nb 2\n"
    scraped = Scraped()
    for first in (True, False):
        found = scraped.update(parser.text_string_to_metric_families(text), first=first)
    assert [value for key, value in found.items() if key.endswith("b")] == [2.0]
    assert not [key for key in found if key.endswith("/a")]


def test_a_journal_of_endless_numbers_is_recovered() -> None:
    """A journal's rows with such numbers are read like any other."""
    delivery = Delivery(run=RunHandle(run_id="r")).header()
    head = {"format": FORMAT, "started": HUGE, "facts": {"a": HUGE}, "node": {}}
    lines = [{**head, "delivery": delivery}, {"rows": [{"timestamp": HUGE, "mem_percent": HUGE}]}]
    found, _ = read_journal("".join(json.dumps(line) + "\n" for line in lines).encode())
    assert found.run.run_id == "r"
    assert found.document.summary["max_t_mem_percent"] == from_json(str(HUGE))


@pytest.mark.parametrize("path", ["/tmp/elsewhere", "../x", "a/../../x"])
def test_a_journal_names_no_place_outside(path: str) -> None:
    """The folder of the artifact, as a journal gives it, lies in the run's artifacts."""
    header = {**Delivery().header(), "artifact_path": path}
    with pytest.raises(DocumentError, match="header is damaged"):
        Delivery.from_header(header, NodeDocument())


class _Server:
    """A tracking server that lists what paths it likes."""

    def __init__(self, *paths: str, folders: tuple[str, ...] = ()) -> None:
        self._paths, self._folders = paths, folders

    def list_artifacts(self, _run_id: str, path: str | None = None) -> list[Any]:
        if path is None:
            return [SimpleNamespace(path=folder, is_dir=True) for folder in self._folders]
        return [SimpleNamespace(path=p, is_dir=False) for p in self._paths]


def test_a_server_names_no_place_outside() -> None:
    """Of what a server lists, only documents right in the folder asked for are fetched."""
    hostile = ("perf/../../node-1.json", "/etc/node-2.json", "../node-3.json", "perf/a/node-4.json")
    server: Any = _Server("perf/node-0.json", *hostile, "perf/..\\node-5.json", "perf/other.json")
    assert _list_documents(server, "run") == ["perf/node-0.json"]
    server = _Server("../x/node-0.json", folders=("../x", "/etc", "..", "a/b"))
    assert _list_documents(server, "run") == []


def test_a_run_id_names_no_place_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a download is named after the run, not after an id in a document."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    block = {"run_id": "/../../x", "summary": {"duration_sec": 1.0}}
    text = json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": block}})
    (tmp_path / "work" / "node-0.json").write_text(text)
    monkeypatch.chdir(tmp_path / "work")
    result = CliRunner().invoke(cli.main, ["download", "node-0.json"])
    assert result.exit_code == 0, result.output
    written = [p.relative_to(tmp_path) for p in tmp_path.rglob("node-0.json")]
    assert all(path.parts[0] == "work" for path in written)
    assert len(written) == 2


@pytest.mark.parametrize(
    ("key", "clean"),
    [("...x/y", "x/y"), ("../../x", "x"), ("....", "_"), ("a/.../b", "a/b"), ("..x", "x")],
)
def test_a_key_of_dots_is_one_that_mlflow_takes(key: str, clean: str) -> None:
    """A key that MLflow would take for a path out of its folder is cleaned."""
    from mlflow.utils.validation import _validate_metric_name

    assert clean_metric_key(key) == clean
    _validate_metric_name(clean)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("digits", ["9" * 30, "9" * 5000])
def test_endless_digits_in_the_environment_are_no_number(digits: str) -> None:
    """What a launcher or a scheduler says in so many digits is as if it were not there."""
    place = node.detect({"PMI_RANK": digits, "PMI_SIZE": digits, "JOB_COMPLETION_INDEX": digits})
    assert (place.index, place.count) == (0, 1)
    whole = owned(environ={})
    slurm = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": digits, "SLURM_MEM_PER_CPU": digits}
    assert owned(environ=slurm).cores == whole.cores
    with pytest.raises(SettingError):
        node.detect({"MLFLOW_PERF_NODE": digits})


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 5000])
def test_endless_digits_in_an_address_are_refused(digits: str) -> None:
    """A limit of so many digits is refused, and a page of as many is the first."""
    assert "limit is" in Choice.read({"limit": [digits]})[1]
    assert Choice.read({"page": [digits]})[0].offset == 0
    assert Choice.read({"page": ["40"]})[0].offset == 40


@pytest.mark.parametrize("odd", [5, "text", {"a": 1}, True, None, [5], [[]]])
@pytest.mark.parametrize("key", ["steps", "findings", "critical_path", "totals", "started"])
def test_a_workflow_of_odd_types_is_drawn(key: str, odd: Any) -> None:
    """A `workflow.json` of a hostile run never breaks the page that shows it."""
    step = {"name": "a", "started": 1.0, "nodes": odd, "depends_on": odd, "run_id": odd}
    assert "</html>" in render(PerfDocument(), workflow={"steps": [step], key: odd})


def test_a_workflow_of_endless_length_is_drawn() -> None:
    """Times whose difference no float holds have an axis all the same."""
    steps = [{"name": "a", "started": s, "duration_sec": 1e308} for s in (-1e308, 1e308)]
    assert "</html>" in render(PerfDocument(), workflow={"steps": steps})


@pytest.mark.parametrize("odd", [[1], "text", 5, True])
@pytest.mark.parametrize("key", ["node", "summary", "reports", "operations", "transfers"])
def test_a_perf_document_of_odd_types_is_imported(key: str, odd: Any, tmp_path: Path) -> None:
    """A part of a document that is of another type is left out, the others are imported."""
    block = {"started": 1.0, "component": "c", "reports": {"timestamp": 5, "a": [1]}, key: odd}
    path = tmp_path / "node-0.json"
    path.write_text(json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": block}}))
    (done,) = import_sources(path, tmp_path / "spans.sqlite3")
    assert done.spans == 2


_TRACE = json.dumps({"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]}).encode()


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_a_damaged_archive_is_one_line(at: int, tmp_path: Path) -> None:
    """A packed trace with a wrong byte is imported as far as it goes, or is an error of ours."""
    packed = bytearray(gzip.compress(_TRACE, mtime=0))
    packed[min(at, len(packed) - 1)] ^= 0x5A
    (tmp_path / "trace.json.gz").write_bytes(packed)
    with suppress(SpansError):
        (done,) = import_sources(tmp_path / "trace.json.gz", tmp_path / "spans.sqlite3")
        assert done.spans <= 1


def test_an_archive_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more of an archive is unpacked than the limit, which the message names."""
    monkeypatch.setattr(chrome, "_MAX_BYTES", 1 << 20)
    bomb = gzip.compress(_TRACE[:-2] + b" " * (8 << 20) + b"]}")
    (tmp_path / "trace.json.gz").write_bytes(bomb)
    with pytest.raises(SpansError, match="unpacks to more than"):
        import_sources(tmp_path / "trace.json.gz", tmp_path / "spans.sqlite3")


@pytest.fixture
def spans_db(tmp_path: Path) -> Path:
    """Give a small spans database."""
    (tmp_path / "trace.json").write_bytes(_TRACE)
    import_sources(tmp_path / "trace.json", tmp_path / "spans.sqlite3")
    return tmp_path / "spans.sqlite3"


@pytest.mark.parametrize(
    "damage",
    [
        # A header that says that there are 10**13 numbers.
        "UPDATE column_cache SET data = CAST('[3, 9999999999999]' AS BLOB) WHERE name = 'event'",
        "UPDATE column_cache SET data = 'text'",
        "UPDATE column_cache SET data = x'ff' WHERE name = 'span'",
        "DROP TABLE column_cache",
        "DROP TABLE string",
    ],
)
def test_a_damaged_spans_database_is_one_line(damage: str, spans_db: Path) -> None:
    """A spans database that somebody else has changed is an error that says what to do."""
    db = sqlite3.connect(spans_db)
    db.execute(damage)
    db.commit()
    db.close()
    with pytest.raises(SpansError, match="import its sources into a new one"):
        types(spans_db)


_ANALYSES: dict[str, Callable[[Path], object]] = {
    "types": types,
    "graph": spans.type_graph,
    "sequences": lambda db: spans.sequences(db, "chrome.event"),
    "between": lambda db: spans.between(db, "start", "end", root="chrome.event"),
    "durations": spans.durations,
    "states": lambda db: spans.states(db, "chrome.event"),
    "concurrency": lambda db: spans.concurrency(db, "chrome.event"),
    "critical path": lambda db: spans.critical_path(db, "chrome.event"),
    "chrome": lambda db: spans.to_chrome_trace(db, db.with_suffix(".json"), events=True),
}


@pytest.mark.parametrize("analysis", list(_ANALYSES))
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("INSERT INTO event_row VALUES (99, 5, 2, 0)", "events of a span that is not there (1)"),
        ("INSERT INTO event_row VALUES (-1, 5, 2, 0)", "events of a span that is not there (1)"),
        ("INSERT INTO event_row VALUES (1, 5, 88, 0)", "events with a type that has no name (1)"),
        ("UPDATE event_row SET type_id = -7", "events with a type that has no name (2)"),
        ("UPDATE event_row SET time_us = 1 << 62", "events with an invalid time (2)"),
        ("UPDATE span_row SET type_id = 1 << 40", "spans with a type that has no name (1)"),
        ("UPDATE span_row SET id = 1 << 50", "spans with an invalid number (1)"),
        ("INSERT INTO subspan_row VALUES (1, 99, 0)", "subspans that are not there (1)"),
        ("INSERT INTO subspan_row VALUES (99, 1, 0)", "subspans of a span that is not there (1)"),
        ("INSERT INTO facet_row VALUES (1, -99, 1)", "facets of a span that is not there (1)"),
    ],
)
def test_unknown_names_are_counted_and_listed(
    damage: str, named: str, analysis: str, spans_db: Path
) -> None:
    """A number that points nowhere is one line for every analysis: which, how many, what to do."""
    spans.sql(spans_db, damage, write=True)
    with pytest.raises(SpansError, match=re.escape(named)) as caught:
        _ANALYSES[analysis](spans_db)
    assert "spans sql --write" in str(caught.value)


def test_damage_that_binding_meets_is_one_line(spans_db: Path) -> None:
    """What brings the columns up to date meets the damage too."""
    spans.sql(spans_db, "INSERT INTO event_row VALUES ('x', 5, 2, 0)", write=True)
    with pytest.raises(SpansError, match="is damaged"):
        spans.bind(spans_db, "chrome.event", "chrome.event", by="name")


def test_texts_that_are_not_utf8_hide_nothing(spans_db: Path) -> None:
    """A word of a hostile source that is no UTF-8 is shown as far as it is."""
    db = sqlite3.connect(spans_db)
    db.execute("UPDATE string SET text = CAST(x'61ff62' AS TEXT) WHERE text = 'chrome.event'")
    db.commit()
    db.close()
    assert [row["type"] for row in types(spans_db)] == ["a\ufffdb"]


@pytest.mark.parametrize("analysis", list(_ANALYSES))
def test_a_word_that_is_no_text_is_one_line_at_most(analysis: str, spans_db: Path) -> None:
    """Bytes in a word's place are shown as text, or named; found by fuzzing."""
    spans.sql(spans_db, "UPDATE string SET text = CAST(text AS BLOB)", write=True)
    with suppress(SpansError):
        _ANALYSES[analysis](spans_db)
    with pytest.raises(SpansError, match="There are no spans of type 'nothing'; there are: "):
        spans.durations(spans_db, "nothing")


def test_a_schema_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    """An SQLite file whose schema is not UTF-8 is an error of ours."""
    path = tmp_path / "x.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE abcdefgh (a)")
    db.commit()
    db.close()
    path.write_bytes(path.read_bytes().replace(b"TABLE abcdefgh", b"TABLX \xe1\x80\n\x1b\xffgh"))
    with pytest.raises(SpansError) as caught:
        import_sources(path, tmp_path / "spans.sqlite3")
    assert str(caught.value).isprintable()


def test_messages_are_one_short_line() -> None:
    """What a message quotes of a hostile file neither breaks its line nor fills the screen."""
    error = DocumentError("a\nb\x1b[31m" + "x" * 10_000)
    assert str(error).startswith("a b [31mxx")
    assert len(str(error)) < 2100
    assert str(StepFailedError("s", "one\x1b\ntwo")).split("\n") == ["one ", "two"]
    assert issubclass(SettingError, MlflowPerfError)


def test_markdown_keeps_the_direction_of_its_text() -> None:
    """What would reorder the text around it is left out of Markdown."""
    assert escape("a\u202eb\u2066") == "a b "
    assert "\u202e" not in format_code("a\u202eb")


def test_an_error_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """The name of a file in an error's line is shown with its control characters spelled out."""
    name = "x\x1b]0;owned\x07\u202e.json"
    (tmp_path / name).write_bytes(struct.pack("4s", b"{{{{"))
    result = CliRunner().invoke(cli.main, ["show", os.fspath(tmp_path / name)])
    assert result.exit_code == 2
    assert not {"\x1b", "\x07", "\u202e"} & set(result.stderr)
