"""The spans commands, as a user or a program calls them."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mlflow_perf.cli import main

_DATA = Path(__file__).parents[1] / "spans" / "data"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call `mlflow-perf spans …` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["spans", *arguments])
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def loaded(run: Any, tmp_path: Path) -> Any:
    """The same, with a recorded run imported into the default database."""
    db = sqlite3.connect(tmp_path / "monitoring.db")
    db.executescript((_DATA / "text" / "monitoring.sql").read_text("utf-8"))
    db.close()
    run("import", "monitoring.db")
    return run


def _json(result: Result) -> Any:
    return json.loads(result.stdout)


def test_import_prints_its_results(loaded: Any) -> None:
    """The import prints the result of each source, and skips a source that has not changed."""
    assert "unchanged" in loaded("import", "monitoring.db").stdout
    (row,) = _json(loaded("import", "monitoring.db", "--db", "other.db", "--json"))
    assert row["importer"] == "parsl-monitoring"
    assert row["spans"] == 31


def test_types_have_the_documented_keys(loaded: Any) -> None:
    """The rows of --json have the keys `type`, `spans` and `events`."""
    rows = _json(loaded("types", "--json"))
    assert {"type": "parsl.monitoring.task", "spans": 13, "events": 26} in rows
    assert all(list(row) == ["type", "spans", "events"] for row in rows)


def test_sequences_have_the_documented_keys(loaded: Any) -> None:
    """The most frequent ordering first; the default root is Parsl's task."""
    rows = _json(loaded("sequences", "--json"))
    assert rows == _json(loaded("sequences", "parsl.monitoring.task", "--json"))
    assert [row["count"] for row in rows] == sorted((r["count"] for r in rows), reverse=True)
    assert set(rows[0]) == {"count", "events"}
    assert set(rows[0]["events"][0]) == {
        "span_type", "event_type", "cumulative_mean_s", "mean_s", "min_s", "max_s",
    }  # fmt: skip
    assert rows[0]["events"][0]["cumulative_mean_s"] == 0
    assert len(_json(loaded("sequences", "--json", "--limit", "1"))) == 1


def test_between_has_the_documented_keys(loaded: Any) -> None:
    """There is a row of `start_s` and `duration_s` for each root that has both events."""
    rows = _json(loaded("between", "invoked", "returned", "--json"))
    assert len(rows) == 13
    assert all(list(row) == ["start_s", "duration_s"] for row in rows)
    tries = _json(
        loaded("between", "running", "running_ended", "--root", "parsl.monitoring.try", "--json")
    )
    assert len(tries) > 5


def test_sql_prints_objects_csv_or_a_table(loaded: Any) -> None:
    """A query prints JSON, CSV or a table."""
    query = "SELECT type, count(*) AS n FROM span WHERE type LIKE '%task' GROUP BY 1"
    assert _json(loaded("sql", query, "--json")) == [{"type": "parsl.monitoring.task", "n": 13}]
    rows = list(csv.DictReader(io.StringIO(loaded("sql", query, "--csv").stdout)))
    assert rows == [{"type": "parsl.monitoring.task", "n": "13"}]
    assert loaded("sql", query).stdout.splitlines()[0].split() == ["type", "n"]


def test_sql_writes_only_when_asked(loaded: Any) -> None:
    """Without --write a change is refused with exit code 2."""
    refused = loaded("sql", "DELETE FROM event_row", code=2)
    assert "--write" in refused.stderr
    loaded("sql", "DELETE FROM event_row", "--write")
    assert sum(row["events"] for row in _json(loaded("types", "--json"))) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("durations",),
        ("durations", "parsl.monitoring.try"),
        ("states",),
        ("concurrency",),
        ("critical-path",),
        ("types",),
        ("sequences", "--percentiles"),
        ("between", "invoked", "returned"),
    ],
)
def test_every_analysis_prints_a_table_and_json(loaded: Any, arguments: tuple[str, ...]) -> None:
    """Each analysis prints a table, and with --json a list of objects."""
    assert loaded(*arguments).stdout.count("\n") >= 2
    rows = _json(loaded(*arguments, "--json"))
    assert rows
    assert all(isinstance(row, dict) for row in rows)


def test_the_critical_path_counts_from_its_start(loaded: Any) -> None:
    """People read how long after the start a task could begin; JSON keeps Unix times."""
    rows = _json(loaded("critical-path", "--json"))
    shown = loaded("critical-path").stdout
    assert "could start" in shown
    assert f"{rows[0]['released_s']:.0f}" not in shown


@pytest.mark.parametrize(
    "arguments",
    [("durations",), ("states",), ("concurrency",), ("between", "invoked", "returned")],
)
def test_pictures_are_drawn(loaded: Any, arguments: tuple[str, ...], tmp_path: Path) -> None:
    """--plot writes a picture in the format of the file's ending, beside the table."""
    drawn = loaded(*arguments, "--plot", "picture.svg").stdout
    assert drawn == loaded(*arguments).stdout
    assert "<svg" in (tmp_path / "picture.svg").read_text("utf-8")


def test_the_graph_goes_to_stdout_or_a_file(loaded: Any, tmp_path: Path) -> None:
    """The graph is printed as DOT or JSON, or written to a file."""
    assert loaded("graph").stdout.startswith("digraph")
    assert set(_json(loaded("graph", "--json"))) == {"types", "relations"}
    loaded("graph", "-o", "graph.dot")
    assert (tmp_path / "graph.dot").is_file()


def test_exports(loaded: Any, tmp_path: Path) -> None:
    """`spans export` writes a Chrome trace, Parquet or both; with neither option it fails."""
    loaded("export", "--chrome", "trace.json", "--parquet", "lake")
    assert json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    assert (tmp_path / "lake" / "event.parquet").is_file()
    assert "Say what to write" in loaded("export", code=2).stderr


def test_spans_are_bound(loaded: Any) -> None:
    """`spans bind` binds two types by key or by name."""
    assert (
        loaded("bind", "parsl.monitoring.workflow", "parsl.monitoring.task").stdout
        == "1 new pair\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("types",), "There is no spans database"),
        (("import", "none.db"), "There is no file or folder"),
        (("sql", "SELECT 1", "--db", "none.db"), "There is no spans database"),
        (("states", "--points", "1"), "--points"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(run: Any, arguments: Any, words: str) -> None:
    """The error says in one line what is wrong; there is no traceback."""
    result = run(*arguments, code=2)
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_names_cannot_steer_the_terminal(run: Any, tmp_path: Path) -> None:
    """Control characters in a name are spelled out."""
    (tmp_path / "x.log").write_text("1669383194.39 x METRIC \x1b[31mred key a=1\n")
    run("import", "x.log")
    shown = run("types").stdout
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown


def test_binding_a_type_that_is_not_there_says_which_are(loaded: Any) -> None:
    """A misspelt type is an error and is not stored; a misspelt database is not created."""
    result = loaded("bind", "parsl.monitoring.tsk", "parsl.monitoring.try", code=2)
    assert "parsl.monitoring.task" in result.output
    rows = loaded("sql", "SELECT 1 FROM string WHERE text LIKE '%.tsk'", "--json").output
    assert json.loads(rows) == []
    loaded("bind", "a", "b", "--db", "other.sqlite3", code=2)
    assert not Path("other.sqlite3").exists()


def test_one_form_at_a_time(loaded: Any) -> None:
    """--json and --csv exclude each other."""
    assert "--json and --csv" in loaded("sql", "SELECT 1", "--json", "--csv", code=2).output


def test_csv_holds_what_the_database_holds(loaded: Any) -> None:
    """CSV keeps each text as it is, even if a spreadsheet would read it as a formula."""
    texts = ["=1+1", "-3", "@x", 'a "b", c', "two\nlines"]
    values = " UNION ALL ".join("SELECT '" + text + "' AS text" for text in texts)
    rows = csv.DictReader(io.StringIO(loaded("sql", values, "--csv").output, newline=""))
    assert [row["text"] for row in rows] == texts
