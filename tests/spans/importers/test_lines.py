"""Searching a log for lines."""

from __future__ import annotations

from pathlib import Path

from mlflow_perf.spans.importers import lines


def test_a_very_long_line_is_cut_at_its_start(tmp_path: Path) -> None:
    """Its time is unknown; it does not take the time of the log's first line."""
    path = tmp_path / "log"
    long = b"x" * (lines._LINE_BYTES + 10)
    path.write_bytes(b"1795000000.0 first\n" + long + b" the words\n1795000001.0 the words\n")
    with lines.Log(path) as log:
        found = [log.time_us(line) for line in log.find(b"the words")]
    assert found == [None, 1795000001000000]
