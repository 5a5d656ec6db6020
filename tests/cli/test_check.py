"""`mlflow-perf check`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import Result

Call = Callable[..., Result]
LIMIT = ("--limit", "node_cpu_hours=+10%")


def test_the_exit_code_is_the_decision(log_run: Callable[..., str], cli: Call) -> None:
    """0 within the limits, 1 beyond one, 2 without a base for one; Markdown in each case."""
    base, good, bad = (log_run({"node_cpu_hours": hours}) for hours in (1.0, 1.05, 1.5))
    for new, status, word in [(good, 0, "passed"), (bad, 1, "failed")]:
        result = cli("check", base, new, *LIMIT, "--limit", "max_t_mem_percent=90")
        assert result.exit_code == status
        assert f"### Performance gate {word}" in result.output
        assert "| train | `node_cpu_hours=+10%` |" in result.output
    result = cli("check", base, bad, "--limit", "node_cpu_hours=auto")
    assert result.exit_code == 2
    assert "### Performance gate cannot judge" in result.output


def test_repeats_are_tested(write_document: Any, cli: Call) -> None:
    """A,B,C on each side are repeats: noise passes, and the test is named."""

    def side(name: str, *hours: float) -> str:
        return ",".join(
            write_document({"node_cpu_hours": h}, name=f"{name}{i}") for i, h in enumerate(hours)
        )

    base = side("base", 1.0, 1.8, 0.7, 1.5)
    noisy = cli("check", base, side("new", 1.2, 0.8, 1.9, 1.6), *LIMIT)
    assert noisy.exit_code == 0
    assert "Mann–Whitney" in noisy.output
    assert cli("check", base, side("bad", 3.0, 3.1, 2.9, 3.2), *LIMIT).exit_code == 1


def test_the_base_is_searched_in_history(log_run: Callable[..., str], cli: Call) -> None:
    """The newest finished runs of the same component on the same hardware are the base."""
    tags = {"branch": "main"}
    for hours in (1.0, 1.01, 0.99, 1.0):
        log_run({"node_cpu_hours": hours}, component="hist", tags=tags)
    log_run({"node_cpu_hours": 50.0}, component="hist", tags=tags, status="FAILED")
    log_run({"node_cpu_hours": 50.0}, component="other", tags=tags)
    log_run({"node_cpu_hours": 50.0, "cpu_limit_cores": 64.0}, component="hist", tags=tags)
    new = log_run({"node_cpu_hours": 2.0}, component="hist")
    result = cli("check", new, "--base-filter", "tags.branch = 'main'", *LIMIT, "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert data["checks"][0]["base"] == [1.0, 0.99, 1.01, 1.0]
    result = cli("check", new, "--base-filter", "", "--base-last", "2", *LIMIT, "--json")
    assert json.loads(result.stdout)["checks"][0]["base"] == [1.0, 0.99]


def test_a_component_of_a_run_with_several_is_judged_by_its_own(
    log_run: Callable[..., str], cli: Call, store: str
) -> None:
    """With `--component`, base and new are that component alone, whichever came first in a run."""
    from mlflow import MlflowClient

    client = MlflowClient(store)
    log_run({"node_cpu_hours": 1.0, "duration_sec": 1.0}, component="exam")
    new = log_run({"node_cpu_hours": 99.0}, component="drill")
    client.set_tag(new, "mlflow_perf.components", '["exam"]')
    for key in ("node_cpu_hours", "duration_sec"):
        client.log_metric(new, f"exam/{key}", 3.0)
    options = ("--component", "exam", "--base-filter", "", *LIMIT, "--json")
    (found,) = json.loads(cli("check", new, *options).stdout)["checks"]
    assert (found["base"], found["new"]) == ([1.0], [3.0])


def test_both_sides_can_be_searched(log_run: Callable[..., str], cli: Call) -> None:
    """The newest runs are judged against those before them, which they are not among."""
    for hours in (1.0, 2.0, 3.0, 4.0, 5.0):
        log_run({"node_cpu_hours": hours}, component="both")
    result = cli(
        *("check", "--component", "both", "--new-filter", "", "--new-last", "2"),
        *("--base-filter", "", "--base-last", "2", *LIMIT, "--json"),
    )
    (found,) = json.loads(result.stdout)["checks"]
    assert (found["new"], found["base"]) == ([5.0, 4.0], [3.0, 2.0])


def test_reports_are_written_to_files(write_document: Any, cli: Call) -> None:
    """JUnit XML and Markdown for the machine that runs the gate."""
    path = write_document({})
    result = cli("check", path, path, *LIMIT, "--junit", "j.xml", "-o", "summary.md")
    assert result.exit_code == 0
    assert ET.parse("j.xml").getroot().get("failures") == "0"
    assert Path("summary.md").read_text(encoding="utf-8") == result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{0}", "{0}"], "Missing option '--limit'"),
        (["{0}", *LIMIT], "Give BASE and NEW"),
        (["{0}", "{0}", "--base-filter", "", *LIMIT], "Give NEW;"),
        (["{0}", "--new-filter", "", *LIMIT], "needs --component"),
        (["{0}", "--new-filter", "", "--component", "nobody", *LIMIT], "No matching run"),
        (["{0}", "{0}", "--limit", "node_cpu_hours"], "cannot be read"),
        (["{0}", "{0}", "--limit", "no_such_key=+1%"], "No run has the metric"),
        (["{0}", ",", *LIMIT], "is empty"),
        (["", "{0}", *LIMIT], "The name of a run is empty"),
        (["", "--base-filter", "", *LIMIT], "The name of a run is empty"),
        (["{0}", "0123456789abcdef", *LIMIT], "does not exist"),
    ],
)
def test_bad_input_ends_with_2(
    arguments: list[str], message: str, write_document: Any, cli: Call, client: Any
) -> None:
    """What cannot be judged is neither passed nor failed."""
    path = write_document({})
    result = cli("check", *(a.format(path) for a in arguments))
    assert result.exit_code == 2
    assert message in result.stderr


def _documented(step: str) -> list[str]:
    """Return the words of the command in a step of the documented workflow for GitHub."""
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    found = re.search(rf"- name: {step}\n  run: \|\n((?:    .*\n)+)", page)
    assert found
    command = re.search(r"mlflow-perf (.*?)(?=\n    done|\Z)", found[1].strip(), re.DOTALL)
    assert command
    line = command[1].replace("\\\n", " ").replace("$GITHUB_STEP_SUMMARY", "summary.md")
    return shlex.split(line)


def test_the_documented_gate_decides(log_run: Callable[..., str], cli: Call) -> None:
    """The command of the docs, unchanged, judges the newest three runs against earlier ones."""
    for hours, status in (((1.0, 1.01, 0.99, 1.02, 0.98, 1.0), 0), ((1.9, 1.91, 1.89), 1)):
        for hour in hours:
            log_run({"node_cpu_hours": hour, "max_t_mem_percent": 40.0})
        result = cli(*_documented("Gate"))
        assert result.exit_code == status, result.output
        assert ET.parse("perf-gate.xml").getroot().get("failures") == str(status)
    assert "Mann–Whitney" in Path("summary.md").read_text(encoding="utf-8")


def test_the_documented_measurement_is_a_command() -> None:
    """The job of the docs' workflow is wrapped by options that `run` has."""
    from mlflow_perf.cli.run import command

    context = command.make_context("run", _documented("Measure three times")[1:])
    assert context.params["name"] == "train"


def test_a_limit_on_a_metric_that_its_step_has_not_is_refused(
    log_run: Callable[..., str], cli: Call
) -> None:
    """What only another step has bounds nothing: a gate of no checks at all would pass."""
    parent = log_run(component="flow")
    tags = {"mlflow.parentRunId": parent}
    log_run({}, component="prepare", tags=tags)
    log_run({"node_energy_wh": 1.0}, component="fit", tags=tags)
    assert cli("check", parent, parent, "--limit", "fit:node_energy_wh=+1%").exit_code == 0
    result = cli("check", parent, parent, "--limit", "prepare:node_energy_wh=+1%")
    assert (result.exit_code, "No run has the metric" in result.stderr) == (2, True)


def test_the_newest_runs_are_the_base_without_a_filter(
    cli: Callable[..., Result], cli_json: Any, log_run: Callable[..., str]
) -> None:
    """`--base-last 10` alone searches all past runs; `auto` allows what these differ by."""
    for value in (10.0, 11.0, 9.0, 10.0, 12.0):
        log_run({"duration_sec": value}, component="noisy")
    within = log_run({"duration_sec": 11.5}, component="noisy")
    new = log_run({"duration_sec": 20.0}, component="noisy")
    args = ("--base-last", "10", "--limit", "auto", "--base-filter", "metrics.duration_sec < 12.5")
    assert cli_json("check", within, *args)["checks"][0]["limit"] == "auto (+24%)"
    result = cli("check", new, "--base-last", "10", "--limit", "duration_sec=auto")
    assert result.exit_code == 1
    assert "Beyond the limit and the noise of 6 base runs" in result.output
