"""The pictures of spans in reports; `test_mlflow_runs.py` logs to a real run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.spans.database.schema import connect
from mlflow_perf.spans.database.store import Store

_HOSTILE = 'a"]; system("x") \\ <img onerror=1>\nb'


@pytest.fixture
def real(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """A recorded run, monitoring and logs."""
    return spans_of(make.recorded("text", tmp_path))


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A database whose names hold quotes, HTML and line ends."""
    db = connect(tmp_path / "hostile.sqlite3", write=True)
    db.execute("BEGIN")
    store = Store(db)
    scope = store.scope(_HOSTILE)
    outer = store.span(_HOSTILE, scope, "k", name=_HOSTILE, host=_HOSTILE)
    inner = store.span("inner", scope, _HOSTILE)
    store.add_subspans([(outer, inner, _HOSTILE)])
    times = ((outer, 1), (outer, 5_000_000), (inner, 2), (inner, 3))
    store.add_events((span, time, _HOSTILE) for span, time in times)
    db.execute("COMMIT")
    db.close()
    return tmp_path / "hostile.sqlite3"


def test_pictures_for_a_page_are_svg_elements(real: Path, hostile: Path) -> None:
    """The SVG elements are small, their words are text, and names are escaped."""
    pictures = spans.report_pictures(real)
    assert list(pictures) == ["States over time", "Durations"]
    for svg in pictures.values():
        assert svg.startswith("<svg")
        assert svg.rstrip().endswith("</svg>")
        assert len(svg) < 400_000
    assert "parsl.monitoring.try/running" in pictures["States over time"]
    assert "<img" not in "".join(spans.report_pictures(hostile, _HOSTILE).values())
