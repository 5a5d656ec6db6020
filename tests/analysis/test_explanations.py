"""Explanations: the cause first, bounded, and nothing private in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import explain
from mlflow_perf.analysis.explanations import build_explanation, hide_private
from mlflow_perf.model.document import NodeDocument, PerfDocument


def _save(folder: Path, name: str, **changes: float) -> str:
    summary = {
        "duration_sec": 60.0,
        "cpu_limit_cores": 2.0,
        "cpu_avg_utilization_pct": 50.0,
        "job_cpu_avg_cores": 1.0,
        "node_cpu_hours": 0.03,
        **changes,
    }
    rows = [
        {
            "function": function,
            "file": "pkg/train.py",
            "line": 3,
            "self_pct": 40.0,
            "total_pct": 90.0,
            "cpu_pct": 80.0,
            "main_s": seconds,
            "wall_s": seconds,
            "cpu_s": seconds,
        }
        for function, seconds in (("fit", 20.0), ("parse", summary["duration_sec"] - 20.0))
    ]
    phases = [
        {"name": "load /data/users/ada/x.csv", "start_s": 0.0, "end_s": 20.0, "kind": "waiting"},
        {"name": "fit", "start_s": 20.0, "end_s": 60.0, "kind": "serial", "cpu_cores": 1.0},
    ]
    node = NodeDocument(
        {"cpu_count": 2},
        component="train",
        status="FINISHED",
        started=1000.0,
        duration_sec=summary["duration_sec"],
        summary=summary,
        extra={"profile": {"functions": rows, "own": rows}, "phases": phases},
    )
    return str(PerfDocument({0: node}).save(folder / f"{name}.json"))


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        ({}, "serial"),
        ({"job_cpu_avg_cores": 0.05}, "waiting"),
        ({"job_run_delay_pct": 96.0, "job_cpu_avg_cores": 0.04}, "contended"),
        ({"job_cpu_avg_cores": 2.0, "cpu_avg_utilization_pct": 100.0}, "saturated"),
        ({"io_stall_pct": 80.0, "job_cpu_avg_cores": 0.1}, "disk"),
        ({"oom_kills": 1.0}, "memory"),
        ({"duration_sec": 0.5}, "too_short"),
    ],
)
def test_the_first_finding_is_the_cause(
    tmp_path: Path, figures: dict[str, float], cause: str
) -> None:
    """A run with a known cause is explained by it, as Markdown and as data."""
    run = _save(tmp_path, "run", **figures)
    data = build_explanation(run).as_dict()
    assert data["findings"][0]["kind"] == cause
    assert {*data["findings"][0]} == {"kind", "severity", "share", "evidence", "do"}
    assert f"1. **{cause.replace('_', ' ')}**" in explain(run)


def test_phases_and_functions_are_named_without_the_path_of_the_data(tmp_path: Path) -> None:
    """Where in the run and in the code; a file is relative, a path is cut to its name."""
    run = _save(tmp_path, "run")
    text, data = explain(run), build_explanation(run).as_dict()
    assert "fit (pkg/train.py:3): 40% itself" in text
    assert [row["function"] for row in data["functions"]] == ["fit", "parse"]
    assert [phase["end_s"] for phase in data["phases"]] == [20.0, 60.0]
    assert "x.csv" in text
    assert "/data/users" not in text + json.dumps(data)


def test_of_two_runs_it_is_said_what_changed(tmp_path: Path) -> None:
    """The ratio, the functions that account for it, the verdicts, and the metrics."""
    slow = {"duration_sec": 600.0, "job_run_delay_pct": 96.0, "node_cpu_hours": 0.33}
    base, new = _save(tmp_path, "base"), _save(tmp_path, "new", **slow)
    text = explain(base, new)
    assert "10.0 × slower: `train` 1 → 10 min; " in text
    assert "parse" in text.split("### Findings")[0]
    assert "node\\_cpu\\_hours" in text or "`node_cpu_hours`" in text
    data = build_explanation(base, new).as_dict()
    assert data["base"]["verdict"] != ""
    assert any(row["metric"] == "node_cpu_hours" for row in data["metrics"])


def test_an_explanation_is_bounded_whatever_the_names_are(tmp_path: Path) -> None:
    """Names of any length and script neither break a line nor exceed 2,000 tokens."""
    node = NodeDocument(
        {"cpu_count": 2},
        component="工程" * 5000,
        duration_sec=60.0,
        summary={"duration_sec": 60.0, "job_cpu_avg_cores": 1.0, "cpu_avg_utilization_pct": 50.0},
        extra={
            "profile": {
                "functions": [{"function": "函数\n" * 900, "file": "x", "line": 1}] * 500,
                "own": [],
            }
        },
    )
    text = explain(PerfDocument({0: node}).save(tmp_path / "run.json"))
    # Each byte of another script may be a token, and at most one in two of English.
    assert sum(len(c.encode()) if c > "\x7f" else 0.5 for c in text) < 2 * 2000
    assert "serial" in text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("read /home/ada/data.csv: 3 s", "read …/data.csv: 3 s"),
        ("at C:\\Users\\ada\\data.csv", "at …/data.csv"),
        ("sqlite:////srv/mlflow/mlflow.db", "…/mlflow.db"),
        ("--api-key abc123 run", "--api-key *** run"),
        ("TOKEN=abc123, x", "TOKEN=***, x"),
        ("http://ada:pw@host/x?sig=abc", "http://ada:***@host/x?…"),
        ("12 MB/s, 3 / 4, pkg/train.py, tokens per second", None),
    ],
)
def test_private_parts_are_hidden(text: str, clean: str | None) -> None:
    """Absolute paths, passwords and keys go; figures and relative files stay."""
    assert hide_private({"a": [text]}) == {"a": [clean or text]}


def test_a_node_that_holds_nonsense_does_not_break_it(tmp_path: Path) -> None:
    """A profile or phases of another shape are left out."""
    extra: dict[str, Any] = {"profile": {"functions": 3}, "phases": "x"}
    node = NodeDocument(duration_sec=60.0, summary={"duration_sec": 60.0}, extra=extra)
    data = build_explanation(PerfDocument({0: node}).save(tmp_path / "run.json")).as_dict()
    assert (data["phases"], data["functions"]) == ([], [])
