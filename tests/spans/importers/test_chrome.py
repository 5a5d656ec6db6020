"""Chrome trace JSON of unusual shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlflow_perf import spans

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


def test_an_open_span_is_not_part_of_a_span_that_ended_before(tmp_path: Path) -> None:
    """A trace that was cut off: what was under way then is not put below what had ended."""
    events = [
        _event("X", "epoch", 0, dur=10),
        _event("X", "load", 2, dur=6),
        _event("B", "next", 20),
        _event("X", "inside", 21, dur=1),
    ]
    assert _parents(_imported(tmp_path, events)) == {"load": "epoch", "inside": "next"}


def test_a_span_without_an_end_holds_what_began_with_it(tmp_path: Path) -> None:
    """Of two spans that begin in the same microsecond, the open one encloses the other."""
    events = [_event("B", "outer", 0), _event("X", "inner", 0, dur=5)]
    assert _parents(_imported(tmp_path, events)) == {"inner": "outer"}


def test_metadata_of_another_shape_spoils_nothing(tmp_path: Path) -> None:
    """A process's name that is none leaves the host unknown; the spans are imported."""
    metadata = {"ph": "M", "name": "process_name"}
    names: list[dict[str, Any]] = [
        {**metadata, "pid": p, "args": a} for p, a in ((1, None), ([], {"name": "x"}))
    ]
    db = _imported(tmp_path, [*names, _event("X", "work", 0, dur=1)])
    assert [row["spans"] for row in spans.types(db)] == [1]


def test_a_damaged_trace_is_read_up_to_its_fault(tmp_path: Path) -> None:
    """The events before the fault are imported, however many brackets follow it, in one go."""
    events = [_event("X", f"e{i}", i, dur=1) for i in range(2000)]
    text = json.dumps(events)[:-1] + ", oops" + "}" * 100_000
    (tmp_path / "trace.json").write_text(text)
    (done,) = spans.import_sources(tmp_path / "trace.json", tmp_path / "db")
    assert done.spans == len(events)
