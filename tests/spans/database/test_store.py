"""Storing events and attributes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.spans.conftest import build_database

from mlflow_perf import spans
from mlflow_perf.spans.database.store import Store


def test_events_of_one_microsecond_are_all_kept(tmp_path: Path) -> None:
    """The same event twice in one microsecond counts twice; written again, still twice."""
    db = build_database(tmp_path / "db", [], [], [(0, 5, "a"), (0, 5, "a"), (0, 5, "b")])
    store = Store(db)
    span = store.span("kind0", store.scope("test"), 0)
    store.add_events([(span, 5, "a"), (span, 5, "a")])
    assert store.events == 0
    assert db.execute("SELECT count(*) FROM event").fetchone() == (3,)
    db.close()


def _imported(tmp_path: Path, events: list[dict[str, Any]]) -> Path:
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}), "utf-8")
    spans.import_sources(tmp_path / "trace.json", tmp_path / "db")
    return tmp_path / "db"


def _event(phase: str, name: str, at: int, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "ts": at, "pid": 1, "tid": 1, **more}


def test_attributes_are_json_that_others_read(tmp_path: Path) -> None:
    """A value that is not finite becomes a string: neither SQLite nor Perfetto reads a bare NaN."""
    args = {"loss": float("nan"), "rate": [float("inf"), 0.5], "NaN": "NaN"}
    db = _imported(tmp_path, [_event("X", "step", 0, dur=1, args=args)])
    (row,) = spans.sql(db, "SELECT json_extract(attributes, '$.rate') AS rate FROM interval")
    assert json.loads(row["rate"]) == ["Infinity", 0.5]

    def refuse(word: str) -> None:
        raise AssertionError(word)

    text = spans.to_chrome_trace(db, tmp_path / "out.json").read_text("utf-8")
    (span,) = (e for e in json.loads(text, parse_constant=refuse)["traceEvents"] if e["ph"] == "X")
    assert (span["args"]["loss"], span["args"]["NaN"]) == ("NaN", "NaN")
