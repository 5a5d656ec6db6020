"""The page about spans: its commands exist, its SQL runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from mlflow_perf import spans
from mlflow_perf.cli.spans import command

_PAGE = (Path(__file__).parents[2] / "docs" / "spans.md").read_text("utf-8")
_SQL = re.findall(r"```sql\n(.*?)```", _PAGE, re.DOTALL)


def test_every_command_is_on_the_page_and_has_help() -> None:
    """The page names each command; each command and option has help."""
    for name, found in command.commands.items():
        assert re.search(rf"(`|spans ){name}\b", _PAGE), name
        assert found.help
        options = [p for p in found.params if isinstance(p, click.Option)]
        assert all(option.help for option in options), name


@pytest.mark.parametrize("query", [q for q in _SQL if "lake/" not in q])
def test_the_pages_sql_runs(query: str, make: Any, tmp_path: Path, spans_of: Any) -> None:
    """Each query runs on a recorded run."""
    db = spans_of(make.recorded("text", tmp_path))
    assert isinstance(spans.sql(db, query), list)


def test_the_pages_duckdb_query_runs(
    make: Any, tmp_path: Path, spans_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the apps of a recorded run in its Parquet files."""
    duckdb = pytest.importorskip("duckdb")
    db = spans_of(make.recorded("text", tmp_path))
    spans.to_parquet(db, tmp_path / "lake" / "monday", name="monday")
    monkeypatch.chdir(tmp_path)
    (query,) = (q for q in _SQL if "lake/" in q)
    found = {name: tasks for _, name, tasks, _ in duckdb.sql(query).fetchall()}
    assert found["src"] == 6


def test_the_table_of_sources_names_the_types_of_a_run(
    make: Any, tmp_path: Path, spans_of: Any
) -> None:
    """Each type of a recorded run is on the page, in full or by its last word."""
    db = spans_of(make.recorded("text", tmp_path))
    for row in spans.types(db):
        last = row["type"].rpartition(".")[2]
        assert row["type"] in _PAGE or f"`.{last}`" in _PAGE, row["type"]
