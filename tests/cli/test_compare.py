"""`mlflow-perf compare`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

Call = Callable[..., Result]


def test_the_json_is_the_contract(log_run: Callable[..., str], cli_json: Any) -> None:
    """A row per metric: component, node, metric, the values in order, the change."""
    data = cli_json("compare", log_run({}), log_run({"duration_sec": 90.0}))
    assert all(set(r) == {"component", "node", "metric", "values", "change_pct"} for r in data)
    (row,) = [r for r in data if r["metric"] == "duration_sec"]
    assert row == {
        "component": "train",
        "node": 0,
        "metric": "duration_sec",
        "values": [60.0, 90.0],
        "change_pct": 50.0,
    }


def test_only_what_differs_is_printed(write_document: Any, cli: Call) -> None:
    """The table is short, names better and worse, and fits 80 columns, with any number of runs."""
    a, b = write_document({}), write_document({"duration_sec": 90.0}, name="b")
    output = cli("compare", a, b).output
    assert re.search(r"duration +worse +1 min +1 min 30 s +\+50\.0%", output), output
    assert "CPU time held" not in output
    assert "0 better, 1 worse" in output
    assert "CPU time held" in cli("compare", a, b, "--all").output
    for runs in ([a, b], [a, b, a], [a, b] * 6):
        output = cli("compare", *runs).output
        table = output[output.index("\n\n") :]
        assert max(map(len, table.splitlines())) <= 80


def test_workflows_are_compared_by_step(log_run: Callable[..., str], cli_json: Any) -> None:
    """Of parent runs the children are matched by their names."""
    parents = []
    for duration in (60.0, 30.0):
        parent = log_run(component="flow")
        for step in ("prepare", "fit"):
            tags = {"mlflow.parentRunId": parent}
            log_run({"duration_sec": duration}, component=step, tags=tags)
        parents.append(parent)
    data = cli_json("compare", *parents)
    found = {r["component"]: r["values"] for r in data if r["metric"] == "duration_sec"}
    assert found == {"prepare": [60.0, 30.0], "fit": [60.0, 30.0]}


def test_markdown_and_html_are_written(write_document: Any, cli: Call) -> None:
    """Both come from the same data; names cannot break out of the page."""
    name = "</script><img src=x onerror=alert(1)>"
    a = write_document({}, component=name)
    b = write_document({"duration_sec": 90.0}, name="b", component=name)
    assert "| 60 s | 90 s | +50.0% worse |" in cli("compare", a, b, "--markdown").output
    assert cli("compare", a, b, "--html", "out.html").exit_code == 0
    page = Path("out.html").read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert "duration_sec" in page


def test_a_place_that_cannot_be_written_is_named(write_document: Any, cli: Call) -> None:
    """Bad output ends with 2 and one line."""
    result = cli("compare", write_document({}), "--html", "no/such/folder.html")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_any_run_may_be_the_baseline(write_document: Any, cli: Call) -> None:
    """The sentence and the change are against the run that is named by its place in the list."""
    a, b = write_document({}), write_document({"duration_sec": 120.0}, name="b")
    assert "2.0 × slower" in cli("compare", a, b).output
    assert "2.0 × faster" in cli("compare", a, b, "--baseline", "2").output
    refused = cli("compare", a, b, "--baseline", "3")
    assert refused.exit_code == 2
    assert "there are 2 runs, so no run 3" in refused.output
