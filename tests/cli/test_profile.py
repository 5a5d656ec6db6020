"""`mlflow-perf profile`: the functions of a run, and of the change between two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mlflow_perf.cli.profile import _shorten
from mlflow_perf.model.document import NodeDocument, PerfDocument

Call = Callable[..., Result]


def _write(folder: Path, name: str, parse_s: float) -> str:
    functions = [["main thread", "", 0, True], ["parse", "job.py", 3, False]]
    node = NodeDocument(
        node={"index": 0},
        component="train",
        duration_sec=parse_s,
        summary={"duration_sec": parse_s},
        extra={
            "profile": {
                "rate_hz": 100.0,
                "samples": 120,
                "processes": 2,
                "cpu_s": parse_s / 2,
                "functions": [
                    {"function": "parse", "file": "job.py", "line": 4, "self_pct": 98.0,
                     "total_pct": 99.0, "cpu_pct": 50.0},
                ],
                "own": [{"function": "parse", "file": "job.py", "main_s": parse_s,
                         "wall_s": parse_s, "cpu_s": parse_s / 2}],
                "flame": {"width_s": 1.0, "functions": functions, "parents": [-1, 0],
                          "names": [0, 1], "buckets": [[1, 1000 * parse_s, 500 * parse_s]]},
            },
            "phases": [{"name": "parse", "start_s": 0, "end_s": parse_s, "kind": "serial",
                        "cpu_cores": 1.0, "mem_mb": None, "function": "parse"}],
        },
    )  # fmt: skip
    return str(PerfDocument({0: node}).save(folder / name))


def test_the_functions_and_phases_are_shown(cli: Call, tmp_path: Path) -> None:
    """A table with the line that was seen most, and one sentence for each phase."""
    out = cli("profile", _write(tmp_path, "a.json", 4.0)).stdout
    assert "120 samples of 2 processes, 100 a second" in out
    assert "CPU time by the job's own functions: parse 100.0%\n" in out
    assert "job.py:4" in out
    assert "98.0%" in out
    assert "0 s to 4 s: parse: one CPU busy, 1 CPU." in out


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("job.py:4", "job.py:4"),
        ("sklearn/linear_model/_logistic.py:1203", "…/linear_model/_logistic.py:1203"),
        ("a/b/c/d.py:1", "a/b/c/d.py:1"),
        ("x" * 40 + "/y.py:1", "x" * 40 + "/y.py:1"),
    ],
)
def test_a_long_path_keeps_its_end(place: str, shown: str) -> None:
    """A narrow table shows the last folder and the file in one piece."""
    assert _shorten(place) == shown


@pytest.mark.parametrize(
    ("facts", "why"),
    [({"recorded_by": "autolog"}, "autolog() takes no stacks"), ({}, "MLFLOW_PERF_PROFILE=0")],
)
def test_a_run_without_a_profile_says_why(
    cli: Call, tmp_path: Path, facts: dict[str, Any], why: str
) -> None:
    """Under autolog no setting would have given it one."""
    document = PerfDocument({0: NodeDocument(node=facts)})
    result = cli("profile", str(document.save(tmp_path / "a.json")))
    assert result.exit_code == 2
    assert why in result.stderr


@pytest.mark.parametrize(("cpu_sec", "is_said"), [(2.4, False), (60.0, True)])
def test_cpu_time_that_no_sample_met_is_said(
    cli: Call, tmp_path: Path, cpu_sec: float, *, is_said: bool
) -> None:
    """A function with 2 of 60 s seemed to have all of the job's CPU time."""
    path = Path(_write(tmp_path, "a.json", 4.0))
    data = json.loads(path.read_text())
    data["nodes"]["0"]["summary"]["job_cpu_hours"] = cpu_sec / 3600
    path.write_text(json.dumps(data))
    out = cli("profile", str(path)).stdout
    assert ("That is 2 s of the job's 1 min of CPU time." in out) is is_said


def test_shares_have_their_error(cli: Call, tmp_path: Path) -> None:
    """As the document has it; a header says what `±` means."""
    path = Path(_write(tmp_path, "a.json", 4.0))
    data = json.loads(path.read_text())
    profile = data["nodes"]["0"]["profile"]
    profile["equal_samples"] = {"wall": 100.0, "cpu": 50.0, "main": 100.0}
    profile["functions"][0] |= {"self_error_pct": 3.4, "total_error_pct": 2.6}
    profile["own"][0] |= {"cpu_error_s": 0.1}
    path.write_text(json.dumps(data))
    out = cli("profile", str(path)).stdout
    assert "a second; ±: 95% interval" in out
    assert "98 ± 3%" in out
    assert "parse 100 ± 5%" in out


def test_the_json_holds_the_folded_top(cli_json: Any, tmp_path: Path) -> None:
    """Without the tree, which is in the document."""
    (node,) = cli_json("profile", _write(tmp_path, "a.json", 4.0), "--json")
    assert node["functions"][0]["function"] == "parse"
    assert node["phases"][0]["kind"] == "serial"
    assert "flame" not in node


def test_two_runs_name_what_changed(cli: Call, cli_json: Any, tmp_path: Path) -> None:
    """The sentence first, then the functions with their seconds."""
    runs = _write(tmp_path, "a.json", 4.0), _write(tmp_path, "b.json", 42.0)
    assert "`parse` +38 s of +38 s." in cli("profile", *runs).stdout
    data = cli_json("profile", *runs, "--json")
    assert data["functions"][0]["change_s"] == 38.0


def test_speedscope_gets_a_file(cli: Call, tmp_path: Path) -> None:
    """The same that the run has as an artifact."""
    file = tmp_path / "out.json"
    cli("profile", _write(tmp_path, "a.json", 4.0), "--speedscope", str(file))
    data = json.loads(file.read_text())
    assert [profile["endValue"] for profile in data["profiles"]] == [4.0, 2.0]


@pytest.mark.parametrize("change", [None, "x", {"flame": {"width_s": -1}}])
def test_a_run_without_a_usable_profile_says_so(cli: Call, tmp_path: Path, change: Any) -> None:
    """One line with the reason, and an exit code of 2."""
    path = Path(_write(tmp_path, "a.json", 4.0))
    data = json.loads(path.read_text())
    data["nodes"]["0"]["profile"] = change
    path.write_text(json.dumps(data))
    found = cli("profile", str(path), "--speedscope", str(tmp_path / "out.json"))
    assert found.exit_code == 2
    assert found.stderr.count("\n") == 1
    assert "profile" in found.stderr


@pytest.mark.parametrize("odd", ["text", [1], {"own": [5], "samples": "x", "functions": [7]}])
def test_a_damaged_profile_is_no_traceback(cli: Call, tmp_path: Path, odd: Any) -> None:
    """Somebody else's document may hold anything in a profile's place."""
    node = NodeDocument(duration_sec=1.0, extra={"profile": odd, "phases": [3]})
    path = str(PerfDocument({0: node}).save(tmp_path / "odd.json"))
    for arguments in ([path], [path, path], [path, _write(tmp_path, "a.json", 4.0)]):
        result = cli("profile", *arguments)
        assert result.exit_code in (0, 2), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
