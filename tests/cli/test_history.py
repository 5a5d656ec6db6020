"""`mlflow-perf history`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result


def test_the_past_of_a_component_is_shown(
    cli: Callable[..., Result], cli_json: Any, log_run: Callable[..., str]
) -> None:
    """The keys of the JSON, and the text of the same."""
    ids = [log_run({"duration_sec": value}, component="past") for value in (10, 10, 10, 20, 20, 20)]
    data = cli_json("history", "--component", "past")
    assert {"component", "metric", "points", "changes"} <= {*data}
    assert {*data["points"][0]} == {"run_id", "time", "value"}
    assert [point["run_id"] for point in data["points"]] == ids
    assert [change["run_id"] for change in data["changes"]] == [ids[3]]
    shown = cli("history", "--component", "past").stdout
    assert "10 s → 20 s (+100%)" in " ".join(shown.split())


def test_a_metric_that_nobody_logged_names_the_nearest(
    cli: Callable[..., Result], log_run: Callable[..., str]
) -> None:
    """One line, and 2."""
    log_run({}, component="near")
    result = cli("history", "--component", "near", "--metric", "node_cpu_hour")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "node_cpu_hours" in result.stderr
