"""`mlflow-perf fleet`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import Result
from mlflow import MlflowClient

from mlflow_perf.tracking import fleet_table

Cli = Callable[..., Result]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _migrated_store: Path) -> MlflowClient:
    """Return a client of a store of its own: the sums are over all runs of it."""
    copy = tmp_path / "own.db"
    shutil.copy(_migrated_store, copy)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{copy}")
    return MlflowClient(f"sqlite:///{copy}")


def test_the_groups_come_most_unused_first(
    cli: Cli, cli_json: Any, log_run: Callable[..., str], tmp_path: Path
) -> None:
    """The keys of the JSON, in the order of the unused hours; a digest as Markdown and HTML."""
    log_run({}, component="small")
    for _ in range(3):
        log_run({"node_unused_cpu_hours": 5.0}, component="large <b>", status="FAILED")
    rows = cli_json("fleet", "--by", "component", "--since", "30d")
    assert [(row["group"], row["runs"], row["failed"]) for row in rows] == [
        ("large <b>", 3, 3),
        ("small", 1, 0),
    ]
    assert rows[0]["unused_cpu_hours"] == 15.0
    assert rows[0]["gpu_hours"] is None
    assert {*rows[0]} == {
        *("group", "runs", "failed", "cpu_hours", "unused_cpu_hours", "gpu_hours"),
        *("unused_gpu_hours", "cost", "unused_cost"),
    }
    assert "4 runs, 3 failed" in cli("fleet").stdout
    for suffix, escaped in (("md", "large \\<b\\>"), ("html", "large &lt;b&gt;")):
        file = tmp_path / f"week.{suffix}"
        result = cli("fleet", "--by", "component", "--digest", str(file))
        assert result.exit_code == 0, result.output
        text = file.read_text()
        assert "The last seven days" in text
        assert escaped in text
        assert "held 15 CPU h that nobody used" in text


def test_artifacts_that_cannot_be_read_here_end_no_digest(
    cli: Cli, client: MlflowClient, tmp_path: Path
) -> None:
    """Those that a server alone reads are missed by the advice, not by the sums."""
    place = client.create_experiment("far", artifact_location="mlflow-artifacts:/far")
    run_id = client.create_run(place, tags={"mlflow_perf.component": "far"}).info.run_id
    for key in ("duration_sec", "node_cpu_hours", "node_unused_cpu_hours"):
        client.log_metric(run_id, key, 5.0)
    result = cli("fleet", "--digest", at := str(tmp_path / "week.md"))
    assert result.exit_code == 0, result.output
    assert "mlflow-perf: far gets no advice: The folder " in result.stderr
    assert "far held 5 CPU h that nobody used." in Path(at).read_text()


def test_a_digest_is_about_the_time_of_since(
    cli: Cli, log_run: Callable[..., str], tmp_path: Path
) -> None:
    """With --since it has the runs of that time, and --json prints their sums too."""
    log_run({}, component="small")
    at = str(tmp_path / "month.md")
    result = cli("fleet", "--since", "30d", "--digest", at, "--json")
    assert result.exit_code == 0, result.output
    assert '"runs": 1' in result.stdout
    assert Path(at).read_text().startswith("## The last 30 days\n\n1 run, 0 failed")


def test_an_empty_fleet_is_said(cli: Cli, cli_json: Any, client: MlflowClient) -> None:
    """No run is an empty list, and a sentence."""
    assert client.search_experiments()
    assert cli_json("fleet") == []
    assert cli("fleet").stdout == "No run with performance data.\n"


@pytest.mark.parametrize(
    "wrong", [["--since", "x"], ["--digest", "x.pdf"], ["--digest", "x.md", "--since", "1"]]
)
def test_a_wrong_value_is_one_line_and_2(cli: Cli, wrong: list[str]) -> None:
    """An age or a file that cannot be used."""
    result = cli("fleet", *wrong)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("by_search", [False, True])
def test_all_runs_are_exported_to_parquet(
    cli: Cli,
    cli_json: Any,
    log_run: Callable[..., str],
    client: MlflowClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_search: bool,
) -> None:
    """DuckDB reads back each component of each run; its sums are those of the fleet."""
    first = log_run({"node_unused_cpu_hours": 1.5}, component="a")
    client.set_tag(first, "mlflow_perf.components", '["b/c"]')
    client.log_metric(first, "b/c/run_cpu_hours", 40.0)
    client.log_metric(first, "b/c/duration_sec", 9.0)
    client.set_tag(first, "mlflow_perf.bottleneck", "balanced")
    client.set_tag(first, "mlflow_perf.advice", "The block took 9 ms: too short to say why.")
    log_run({"node_unused_cpu_hours": 2.0}, component="a", status="FAILED")
    client.create_run(client.create_experiment("others"))
    if by_search:
        monkeypatch.setattr(fleet_table, "find_sql_store", lambda _: None)
    file = tmp_path / "all.parquet"
    result = cli("fleet", "--parquet", str(file))
    assert (result.exit_code, result.stderr) == (0, f"Wrote {file}: 3 rows\n")
    (whole,) = cli_json("fleet")
    query = f"""SELECT count(DISTINCT run_id), sum(cpu_hours), sum(unused_cpu_hours), sum(cost),
        max(duration_sec) FILTER (component = 'b/c'), count(*) FILTER (status = 'FAILED'),
        min(epoch(started)), max(held_back_by) FROM '{file}'"""
    (row,) = duckdb.connect().execute(query).fetchall()
    assert row[0] == whole["runs"] == 2
    assert row[1] == pytest.approx(whole["cpu_hours"])
    assert (row[2], row[3], row[4]) == (3.5, None, 9.0)
    assert row[5] == whole["failed"] == 1
    assert row[6] * 1000 == client.get_run(first).info.start_time
    assert row[7] == "too short"
    assert [one.name for one in tmp_path.iterdir() if "parquet" in one.name] == ["all.parquet"]


def test_a_parquet_file_that_cannot_be_written_is_one_line(
    cli: Cli, client: MlflowClient, tmp_path: Path
) -> None:
    """A folder that does not exist; an empty store makes a file without rows."""
    result = cli("fleet", "--parquet", str(tmp_path / "none" / "x.parquet"))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    file = tmp_path / "empty.parquet"
    assert cli("fleet", "--parquet", str(file)).exit_code == 0
    assert duckdb.connect().execute(f"SELECT run_id, cost FROM '{file}'").fetchall() == []
