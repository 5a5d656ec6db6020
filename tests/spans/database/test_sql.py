"""Any SQL on a spans database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.errors import SpansError


@pytest.fixture
def simple(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """A database with one run."""
    return spans_of(make.simple_monitoring(tmp_path / "monitoring.db"))


def test_a_query_cannot_write_unless_asked(simple: Path, tmp_path: Path) -> None:
    """Neither the database nor any other file; the error says how to ask."""
    other = tmp_path / "other.db"
    for query in (
        "DELETE FROM event_row",
        f"ATTACH '{other}' AS other",
        f"VACUUM INTO '{other}'",
        "CREATE TABLE x (y)",
    ):
        with pytest.raises(SpansError):
            spans.sql(simple, query)
    assert not other.exists()
    assert spans.types(simple)[0]["events"] == 6
    with pytest.raises(SpansError, match="--write"):
        spans.sql(simple, "DELETE FROM event_row")


def test_even_a_writing_query_touches_no_other_file(simple: Path, tmp_path: Path) -> None:
    """With `write`, other files stay out of reach."""
    with pytest.raises(SpansError, match="not authorized"):
        spans.sql(simple, f"ATTACH '{tmp_path / 'other.db'}' AS other", write=True)
    assert not (tmp_path / "other.db").exists()


def test_parameters_are_bound(simple: Path) -> None:
    """A hostile value is a value: nothing of it is run."""
    rows = spans.sql(simple, "SELECT ? AS said", ["'; DROP TABLE span_row; --"])
    assert rows == [{"said": "'; DROP TABLE span_row; --"}]


def test_rows_are_strict_json(simple: Path) -> None:
    """Infinity, bytes and two columns of one name have a form that JSON holds."""
    rows = spans.sql(simple, "SELECT 9e999 AS big, x'00ff' AS raw, 1 AS n, 2 AS n")
    assert rows == [{"big": None, "raw": "00ff", "n": 1, "n:1": 2}]


def test_a_wrong_query_is_one_line(simple: Path) -> None:
    """SQLite's own words, in a sentence of ours."""
    with pytest.raises(SpansError, match="no such table: spam"):
        spans.sql(simple, "SELECT * FROM spam")
    with pytest.raises(SpansError, match=r"one statement at a time\.$"):
        spans.sql(simple, "SELECT 1; SELECT 2")
    with pytest.raises(SpansError, match="empty"):
        spans.sql(simple, " ")
    with pytest.raises(SpansError, match=r"surrogates|wrong type"):
        spans.sql(simple, "SELECT '\udcff'")
    with pytest.raises(SpansError, match="too large"):
        spans.sql(simple, "SELECT ?", [2**70])
