"""Explanations: the cause first, bounded, and nothing private in them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from tests.analysis.situations.jobs import SITUATIONS, Situation
from tests.analysis.situations.record import read_recorded

from mlflow_perf import explain
from mlflow_perf.analysis.explanations import _rank_functions, build_explanation, hide_private
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.load import load


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


LOOPS: dict[str, Any] = json.loads(
    gzip.decompress((Path(__file__).parent / "slow_loops.json.gz").read_bytes())
)
KIND_OF_LOOP = {"input": "input", "straggler": "straggler", "contended": "contended"}


def _explain(folder: Path, node: NodeDocument) -> tuple[str, str]:
    """Return the kind of the first finding, and the Markdown."""
    file = PerfDocument({0: node}).save(folder / "run.json")
    return build_explanation(file).as_dict()["findings"][0]["kind"], explain(file)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_a_recorded_job_is_explained_by_its_cause(tmp_path: Path, situation: Situation) -> None:
    """Real jobs that were made to have one cause, as the sampler saw them."""
    kind, text = _explain(tmp_path, read_recorded()[situation.name, ""])
    assert kind == situation.expected
    assert f"1. **{kind.replace('_', ' ')}**" in text
    assert len(text) < 4 * 2000


@pytest.mark.parametrize("name", LOOPS)
def test_a_recorded_loop_is_explained_by_its_cause(tmp_path: Path, name: str) -> None:
    """Real training loops that were made slow in one way: kind, part and rank come first."""
    word, rank, part = LOOPS[name]["expected"]
    ranks = [row for loop in LOOPS[name]["steps"].values() for row in loop["ranks"].values()]
    duration_sec = max(row["step"]["total_ms"] for row in ranks) / 1000.0
    node = NodeDocument(
        duration_sec=duration_sec,
        summary={"duration_sec": duration_sec, "cpu_avg_utilization_pct": 20.0},
        steps=LOOPS[name]["steps"],
    )
    _, text = _explain(tmp_path, node)
    # The machine was busy with other work while the loops ran.
    found = [line for line in text.splitlines() if line[:1].isdigit()]
    first = next(f for f in found if word == "contended" or "**contended**" not in f)
    assert f"**{KIND_OF_LOOP.get(word, 'steps')}**" in first
    assert (part or "") in first.replace("none of its parts", "rest")
    assert rank is None or f"Rank {rank}" in first


_SELFTEST = "-m mlflow_perf.selftest.loads"


@pytest.mark.load
@pytest.mark.parametrize(
    ("command", "status", "kinds"),
    [
        (f"{_SELFTEST} duration .", "FINISHED", ["waiting"]),
        (f"{_SELFTEST} profile_split .", "FINISHED", ["serial", "contended"]),
        (f"{_SELFTEST} profile_children .", "FINISHED", ["serial", "contended"]),
        ("-c 'import time; time.sleep(3); raise SystemExit(3)'", "FAILED", ["waiting"]),
        ("-c 'while True: pass' & sleep 5; kill $!; wait $!", "KILLED", ["serial", "contended"]),
        ("-c 'pass'", "FINISHED", ["too_short"]),
    ],
)
def test_real_loads_are_explained_by_their_cause(
    store: str, tmp_path: Path, command: str, status: str, kinds: list[str]
) -> None:
    """Loads of the self-test and failing jobs, through the command line, in a store."""
    client = MlflowClient(store)
    experiment = client.create_experiment(f"labelled {uuid.uuid4()}")
    line = f"{sys.executable} -m mlflow_perf run -- {sys.executable} {command}"
    env = os.environ | {"MLFLOW_TRACKING_URI": store, "MLFLOW_EXPERIMENT_ID": experiment}
    subprocess.run(line, shell=True, env=env, cwd=tmp_path, check=False, timeout=120)
    (run,) = client.search_runs([experiment])
    found = build_explanation(run.info.run_id)
    assert found.status.startswith(status)
    assert found.findings[0].kind in kinds, found.to_markdown()


def test_the_jobs_own_functions_that_computed_are_named_first() -> None:
    """Idle threads of libraries have most wall time; they do not hide the work."""
    rows = [
        {"function": name, "file": file, "line": 1, "self_pct": share}
        for name, file, share in (
            ("_worker", "thread.py", 27), ("wait", "threading.py", 22), ("<module>", "train.py", 9),
            ("fit", "train.py", 1),
        )
    ]  # fmt: skip
    own = [
        {"function": "_worker", "file": "thread.py", "cpu_s": 0.0},
        {"function": "train.py", "file": "train.py", "cpu_s": 1.0},
        {"function": "fit", "file": "train.py", "cpu_s": 8.0},
    ]
    node = NodeDocument(extra={"profile": {"functions": rows, "own": own}})
    names = [row["function"] for row in _rank_functions(node)]
    assert names == ["fit", "<module>", "_worker", "wait"]


def test_the_caller_of_a_shared_function_is_named(tmp_path: Path) -> None:
    """In the line of the function, and in the JSON with a key of its own."""
    document = load(_save(tmp_path, "a"))
    callers = [
        {"function": "read", "file": "pkg/train.py", "main_s": 35.0, "cpu_s": 35.0},
        {"function": "save", "file": "pkg/train.py", "main_s": 5.0, "cpu_s": 5.0},
    ]
    profile = document.nodes[0].extra["profile"]
    own = [{**row, "callers": callers} for row in profile["own"]]
    document.nodes[0].extra["profile"] = {**profile, "own": own}
    explanation = build_explanation(str(document.save(tmp_path / "b.json")))
    assert (
        "- parse (pkg/train.py:3): 40.0% itself, 90.0% with callees, 80% computing, called by "
        "read\n" in explanation.to_markdown()
    )
    assert explanation.as_dict()["functions"][0]["caller"] == "read"


@pytest.mark.parametrize(("cpu_s", "caller"), [(6.0, "fit"), (0.1, "prepare")])
def test_the_caller_is_that_of_workers_where_they_compute(cpu_s: float, caller: str) -> None:
    """The main thread calls the same function; only what waits is its alone."""
    callers = [
        {"function": "fit", "main_s": 0.0, "cpu_s": cpu_s},
        {"function": "prepare", "main_s": 1.5, "cpu_s": 0.1},
    ]
    own = [{"function": "burn", "file": "a.py", "main_s": 1.5, "cpu_s": cpu_s + 0.1,
            "callers": callers}]  # fmt: skip
    row = {"function": "burn", "file": "a.py", "line": 1, "self_pct": 50}
    node = NodeDocument(extra={"profile": {"functions": [row], "own": own}})
    assert [one["caller"] for one in _rank_functions(node)] == [caller]


def test_phases_and_functions_are_named_without_the_path_of_the_data(tmp_path: Path) -> None:
    """Where in the run and in the code; a file is relative, a path is cut to its name."""
    run = _save(tmp_path, "run")
    text, data = explain(run), build_explanation(run).as_dict()
    assert "fit (pkg/train.py:3): 40.0% itself" in text
    assert [row["function"] for row in data["functions"]] == ["parse", "fit"]
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
        ("TOKEN=abc, x", "TOKEN=***, x"),
        ("api_key: sk-4f9a", "api_key: ***"),
        ("step secret: santa of token: count", None),
        ("http://ada:pw@host/x?sig=abc", "http://ada:***@host/x?…"),
        ("12 MB/s, 3 / 4, pkg/train.py, tokens per second", None),
    ],
)
def test_private_parts_are_hidden(text: str, clean: str | None) -> None:
    """Absolute paths, passwords and keys go; figures and relative files stay."""
    assert hide_private({"a": [text]}) == {"a": [clean or text]}


def test_a_killed_jobs_duration_is_a_lower_bound(tmp_path: Path) -> None:
    """Of its last seconds nothing is known."""
    node = NodeDocument(duration_sec=2.5, summary={"duration_sec": 2.5}, status="KILLED")
    for cut_off, took in ((False, ", 2.5 s."), (True, ", at least 2.5 s.")):
        node.extra = {"cut_off": True} if cut_off else {}
        path = PerfDocument({0: node}).save(tmp_path / "node-0.json")
        assert took in explain(str(path)).splitlines()[1]


def test_a_run_without_figures_has_no_verdict(tmp_path: Path) -> None:
    """It is not said to be balanced for all of its time."""
    node = NodeDocument(duration_sec=60.0, summary={"duration_sec": 60.0})
    text = explain(PerfDocument({0: node}).save(tmp_path / "run.json"))
    assert "\n1. The node reported no CPU figures: there is no verdict.\n" in text


def test_a_node_that_holds_nonsense_does_not_break_it(tmp_path: Path) -> None:
    """A profile or phases of another shape are left out."""
    extra: dict[str, Any] = {"profile": {"functions": 3}, "phases": "x"}
    node = NodeDocument(duration_sec=60.0, summary={"duration_sec": 60.0}, extra=extra)
    data = build_explanation(PerfDocument({0: node}).save(tmp_path / "run.json")).as_dict()
    assert (data["phases"], data["functions"]) == ([], [])


def test_components_that_reported_after_their_run_are_weighed_by_their_own_time(
    tmp_path: Path,
) -> None:
    """Each share is of the time that was measured, and the failed component has its cause."""
    nodes = {
        name: NodeDocument(
            {"cpu_count": 2},
            component=name,
            status=status,
            started=started,
            duration_sec=seconds,
            summary={
                "duration_sec": seconds,
                "cpu_limit_cores": 2.0,
                "cpu_avg_utilization_pct": 50.0,
                "job_cpu_avg_cores": 1.0,
            },
            extra=extra,
        )
        for name, status, started, seconds, extra in (
            ("one", "FINISHED", 1000.0, 30.0, {}),
            ("two", "FAILED", 1040.0, 90.0, {"cause": "exit code 3"}),
        )
    }
    other = PerfDocument({0: nodes["two"]})
    path = PerfDocument({0: nodes["one"]}, components={"two": other}).save(tmp_path / "run.json")
    found = build_explanation(str(path))
    assert [one.share for one in found.findings] == [0.75, 0.25]
    assert "FAILED (two: exit code 3), 2 min 10 s." in found.to_markdown()
