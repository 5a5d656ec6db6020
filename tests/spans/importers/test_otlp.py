"""OpenTelemetry spans in OTLP JSON."""

from __future__ import annotations

import json
from pathlib import Path

from mlflow_perf import spans


def test_json_lines_end_at_line_ends_only(tmp_path: Path) -> None:
    """A line separator within a JSON string, which JSON allows, ends no line."""
    span = {"traceId": "t", "spanId": "s", "name": "a\u2028b", "startTimeUnixNano": "1000"}
    line = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}, ensure_ascii=False)
    path = tmp_path / "otlp.jsonl"
    other = line.replace('"spanId": "s"', '"spanId": "r"')
    path.write_text(f"{line}\n{other}\n", "utf-8")
    (result,) = spans.import_sources(path, tmp_path / "db")
    assert (result.spans, result.unread) == (2, {})
