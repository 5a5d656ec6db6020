"""Traces and logs of odd shapes: what was cut off, what is not finite, lines that are very long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.importers import lines
from mlflow_perf.spans.importers import load_sources as imports

_PARENTS = (
    "SELECT p.note AS upper, c.note AS lower FROM subspan r"
    " JOIN span p ON p.uuid = r.superspan_uuid JOIN span c ON c.uuid = r.subspan_uuid"
)


def _imported(tmp_path: Path, events: list[dict[str, Any]]) -> Path:
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}), "utf-8")
    spans.import_sources(tmp_path / "trace.json", tmp_path / "db")
    return tmp_path / "db"


def _event(phase: str, name: str, at: int, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "ts": at, "pid": 1, "tid": 1, **more}


def _parents(db: Path) -> dict[str, str]:
    return {row["lower"]: row["upper"] for row in spans.sql(db, _PARENTS)}


def test_a_span_without_an_end_is_no_part_of_one_that_ended_before(tmp_path: Path) -> None:
    """A trace that was cut off: what was under way then is not put below what had ended."""
    events = [
        _event("X", "epoch", 0, dur=10),
        _event("X", "load", 2, dur=6),
        _event("B", "next", 20),
        _event("X", "inside", 21, dur=1),
    ]
    assert _parents(_imported(tmp_path, events)) == {"load": "epoch", "inside": "next"}


def test_a_span_without_an_end_holds_what_began_with_it(tmp_path: Path) -> None:
    """Of two that begin in the same microsecond, the one that did not end is the longer."""
    events = [_event("B", "outer", 0), _event("X", "inner", 0, dur=5)]
    assert _parents(_imported(tmp_path, events)) == {"inner": "outer"}


def test_metadata_of_another_shape_spoils_nothing(tmp_path: Path) -> None:
    """A process's name that is none leaves the host unknown; the spans are imported."""
    metadata = {"ph": "M", "name": "process_name"}
    names = [{**metadata, "pid": p, "args": a} for p, a in ((1, None), ([], {"name": "x"}))]
    db = _imported(tmp_path, [*names, _event("X", "work", 0, dur=1)])
    assert [row["spans"] for row in spans.types(db)] == [1]


def test_attributes_are_json_that_others_read(tmp_path: Path) -> None:
    """What is not finite stands as a word: neither SQLite nor Perfetto reads a bare NaN."""
    args = {"loss": float("nan"), "rate": [float("inf"), 0.5], "NaN": "NaN"}
    db = _imported(tmp_path, [_event("X", "step", 0, dur=1, args=args)])
    (row,) = spans.sql(db, "SELECT json_extract(attributes, '$.rate') AS rate FROM interval")
    assert json.loads(row["rate"]) == ["Infinity", 0.5]

    def refuse(word: str) -> None:
        raise AssertionError(word)

    text = spans.to_chrome_trace(db, tmp_path / "out.json").read_text("utf-8")
    (span,) = (e for e in json.loads(text, parse_constant=refuse)["traceEvents"] if e["ph"] == "X")
    assert (span["args"]["loss"], span["args"]["NaN"]) == ("NaN", "NaN")


def test_a_line_longer_than_is_looked_at_is_not_the_whole_log(tmp_path: Path) -> None:
    """Its time is not known then; it is never that of the log's first line."""
    path = tmp_path / "log"
    long = b"x" * (lines._LINE_BYTES + 10)
    path.write_bytes(b"1795000000.0 first\n" + long + b" the words\n1795000001.0 the words\n")
    with lines.Log(path) as log:
        found = [log.time_us(line) for line in log.find(b"the words")]
    assert found == [None, 1795000001000000]


def test_json_lines_end_at_line_ends_only(tmp_path: Path) -> None:
    """A line separator within a JSON string, which JSON allows, ends no line."""
    span = {"traceId": "t", "spanId": "s", "name": "a\u2028b", "startTimeUnixNano": "1000"}
    line = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}, ensure_ascii=False)
    path = tmp_path / "otlp.jsonl"
    other = line.replace('"spanId": "s"', '"spanId": "r"')
    path.write_text(f"{line}\n{other}\n", "utf-8")
    (result,) = spans.import_sources(path, tmp_path / "db")
    assert (result.spans, result.unread) == (2, {})


@pytest.mark.parametrize("call", ["iterdir", "stat"])
def test_a_folder_that_cannot_be_read_is_named(
    call: str, tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is forbidden, or whose files vanish on the way, is an error that names it."""
    folder = make.recorded("text", tmp_path / "in")
    run = next(folder.rglob("parsl.log")).parent

    def refuse(_self: Path, *_more: Any, **_other: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    if call == "iterdir":
        monkeypatch.setattr(Path, "iterdir", refuse)
    else:
        monkeypatch.setattr(imports, "_stamp", refuse)
    with pytest.raises(SpansError, match="Permission denied"):
        spans.import_sources(run.parent if call == "iterdir" else run, tmp_path / "db")


def test_what_is_known_of_a_span_is_brought_up_to_date(tmp_path: Path) -> None:
    """A source that is imported again once its job has ended does not say that it still runs."""
    path = tmp_path / "node-0.json"
    for status, more in (("RUNNING", {}), ("FINISHED", {"duration_sec": 2.0})):
        node = {"started": 1795000000.0, "component": "fit", "status": status, **more}
        path.write_text(json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": node}}), "utf-8")
        spans.import_sources(path, tmp_path / "db")
    query = "SELECT json_extract(attributes, '$.status') AS status FROM interval WHERE type = ?"
    assert spans.sql(tmp_path / "db", query, ["mlflow_perf.node"]) == [{"status": "FINISHED"}]


def test_counters_and_transfers_of_a_document_are_imported(tmp_path: Path) -> None:
    """A counter is a figure of its node, what was transferred stands with its transfer."""
    node = {
        "started": 1795000000.0,
        "duration_sec": 2.0,
        "summary": {"transfers/nixl/num_successful": 3.0, "transfers/nixl/throughput_mb_s": 9.5},
        "operations": {"counters": {"rows": 7, "beyond floats": 10**400}},
        "transfers": {"nixl": {"transfer_duration": {"count": 3}, "num_failed_transfers": 1}},
    }
    path = tmp_path / "node-0.json"
    path.write_text(json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": node}}), "utf-8")
    spans.import_sources(path, tmp_path / "db")
    counted = spans.sql(tmp_path / "db", "SELECT name, time, value FROM metric")
    assert counted == [{"name": "ops/rows/count", "time": 1795000002.0, "value": 7.0}]
    (row,) = spans.sql(
        tmp_path / "db", "SELECT attributes FROM interval WHERE type = 'mlflow_perf.transfer'"
    )
    assert json.loads(row["attributes"]) == {
        "num_successful": 3.0, "throughput_mb_s": 9.5, "num_failed_transfers": 1,
    }  # fmt: skip
