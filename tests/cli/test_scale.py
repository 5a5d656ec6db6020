"""`mlflow-perf scale`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

Call = Callable[..., Result]


def test_other_counts_are_predicted(log_run: Any, cli_json: Any, cli: Call) -> None:
    """By runs or by component; the report of such a run shows its scaling."""
    runs = [
        log_run(*[{"duration_sec": 10.0 + 90.0 / n}] * n, component="scaled") for n in (1, 2, 3)
    ]
    data = cli_json("scale", *runs, "--nodes", "4,8")
    assert [row["nodes"] for row in data["predictions"]] == [4, 8]
    assert abs(data["predictions"][0]["seconds"] - 32.5) < 4
    assert (data["fastest"], data["cheapest"]) == (8, 4)
    by_component = cli_json("scale", "--component", "scaled", "--nodes", "4,8")
    assert by_component["predictions"] == data["predictions"]
    output = cli("scale", *runs, "--html", "scaling.html").output
    assert "fewest node-hours on 1" in output
    assert "Scaling of scaled" in Path("scaling.html").read_text()
    assert "Scaling of scaled" in cli("report", runs[0], "-o", "-").output


def test_runs_that_are_left_out_are_named(log_run: Any, cli: Call) -> None:
    """Without that line, a run on two nodes that is still going seemed to have had one."""
    ended = log_run({}, component="partly")
    going = log_run({}, {}, component="partly", status="RUNNING")
    result = cli("scale", ended, going)
    assert result.exit_code == 2
    left_out, why = result.stderr.splitlines()
    assert left_out.startswith("Left out, as not ended well or without a duration: partly (")
    assert going[:8] in left_out
    assert "All runs of partly had 1 node" in why


def test_bad_use_is_one_line(log_run: Any, cli: Call) -> None:
    """One count, no runs, and numbers that are none."""
    run = log_run({}, component="alone")
    result = cli("scale", run)
    assert result.exit_code == 2
    assert "All runs of alone had 1 node: scaling needs runs" in result.stderr
    for wrong in ("many", "0,-1"):
        assert "whole numbers" in cli("scale", run, "--nodes", wrong).stderr
    assert cli("scale").exit_code == 2
    unknown = cli("scale", "--component", "alonee")
    assert unknown.exit_code == 2
    assert "No run of the component 'alonee' holds performance data: did you mean" in unknown.stderr
