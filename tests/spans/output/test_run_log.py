"""The pictures of spans in reports; `test_mlflow_run.py` logs to a real run."""

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
    """A database whose names try to break out of whatever holds them."""
    db = connect(tmp_path / "hostile.sqlite3", write=True)
    db.execute("BEGIN")
    store = Store(db)
    scope = store.scope(_HOSTILE)
    outer = store.span(_HOSTILE, scope, "k", name=_HOSTILE, host=_HOSTILE)
    inner = store.span("inner", scope, _HOSTILE)
    store.add_subspans([(outer, inner, _HOSTILE)])
    event = store.string(_HOSTILE)
    store.add_events([outer, outer, inner, inner], [1, 5_000_000, 2, 3], [event] * 4)
    db.execute("COMMIT")
    db.close()
    return tmp_path / "hostile.sqlite3"


def test_pictures_for_a_page_are_svg_elements(real: Path, hostile: Path) -> None:
    """They stand in a page as they are: small, words as text, names escaped."""
    pictures = spans.report_pictures(real)
    assert list(pictures) == ["States over time", "Durations"]
    for svg in pictures.values():
        assert svg.startswith("<svg")
        assert svg.rstrip().endswith("</svg>")
        assert len(svg) < 400_000
    assert "parsl.monitoring.try/running" in pictures["States over time"]
    assert "<img" not in "".join(spans.report_pictures(hostile, _HOSTILE).values())
