"""`mlflow-perf pipeline run`: what is said, and the exit codes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from mlflow_perf.cli import _tables, main, pipeline
from mlflow_perf.cli.pipeline import (
    _import_spans,
    _printing_as_error,
    _Progress,
    _run_all,
    _show,
)
from mlflow_perf.errors import PipelineStoppedError, SettingError, StepFailedError
from mlflow_perf.pipelines.graph import Graph, Step
from mlflow_perf.pipelines.result import Result
from mlflow_perf.pipelines.step_outcome import Outcome
from mlflow_perf.pipelines.step_table import Row
from mlflow_perf.publish.workflow_writer import Place, find_place, make_embedded_place


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["pipeline", "run", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.py"], "The pipeline file gone.py does not exist."),
        (["gone.py", "--set", "rows"], "--set 'rows' must be key=value."),
    ],
)
def test_bad_input_is_one_line_and_two(arguments: list[str], message: str) -> None:
    """A mistake of the caller ends with 2 and a sentence, before anything is made."""
    done = _run(*arguments)
    assert done.exit_code == 2
    assert done.output.strip() == f"mlflow-perf: {message}"


def test_help_names_every_option() -> None:
    """What the README promises is there."""
    text = _run("--help").output
    for option in ("--set", "--on", "--to", "--retries", "--json", "--no-wait"):
        assert option in text
    assert "threads|htex|CONFIG.py|azureml" in text


def test_what_a_script_and_its_programs_print_is_no_json(capfd: pytest.CaptureFixture[str]) -> None:
    """It goes to the standard error, until the script has ended."""
    with _printing_as_error():
        print("script", flush=True)
        subprocess.run(["echo", "program"], check=True)
    subprocess.run(["echo", "json"], check=True)
    assert capfd.readouterr() == ("json\n", "script\nprogram\n")


def test_progress_is_told_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step's beginning and end is a line on a terminal, and nothing in a file."""
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        progress = _Progress(["make", "after"])
        progress.tell("make", "began", None)
        progress.tell("make", "ended", Outcome("make", "FINISHED", duration_sec=1.25))
        lines = capsys.readouterr().err.splitlines()
        told = ["[0/2] make   began", "[1/2] make   finished after 1.2 s"]
        assert lines == (told if terminal else [])


ROWS = [
    Row("make", "FINISHED", 1.25, 1, 0.75, 0.5, 0.25, 100.4, 1.0, 2.0, reported=True),
    Row("plain", "FINISHED", 2.0, 1, 2.0, 0.5),
    Row("after", "SKIPPED", 0.0, 2),
]


def test_short_steps_have_their_cpu_time_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """0.00002 CPU hours say nothing to people; the unit is in the head of the column."""
    rows = [Row("make", "FINISHED", 1.25, 1, 0.75, 0.001, 0.00002, 100.4, 1.0, 2.0, reported=True)]
    graph, result = Graph("g", "A title", "e", {}), Result("r", "1", "FINISHED", duration_sec=3.0)
    tracking = SimpleNamespace(place=Place("http://host"))
    _show(graph, result, rows, tracking, as_json=False)  # type: ignore[arg-type] # a double
    lines = capsys.readouterr().out.splitlines()
    # Of one node each, and of one fate with the whole: two columns would say nothing new.
    assert lines[3].split("  ")[-7:] == [
        "sec", "measured", "CPU s", "unused", "peak MB", "read MB", "write MB"
    ]  # fmt: skip
    assert lines[4].split()[:5] == ["make", "1.2", "0.8", "3.6", "0.1"]


def test_the_table_has_a_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Missing figures are dashes; figures that the runner measured are marked and explained."""
    place = Place("http://host")
    graph, result = Graph("g", "A\ntitle", "e", {}), Result("r", "1", "FINISHED", duration_sec=3.0)
    _show(graph, result, ROWS, SimpleNamespace(place=place), as_json=False)  # type: ignore[arg-type] # a double
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "A\\x0atitle: FINISHED in 3.0 s"
    assert lines[3].split()[:3] == ["step", "status", "sec"]
    assert lines[4].split() == [
        "make", "FINISHED", "1.2", "1", "0.8", "0.500", "0.250", "100", "1.0", "2.0",
    ]  # fmt: skip
    assert lines[5].split()[0] == "plain*"
    assert lines[6].split() == ["after", "SKIPPED", "0.0", "2", "–", "–", "–", "–", "–", "–"]
    assert lines[7].startswith("* measured by the runner")
    assert lines[8].startswith("run: http://host/")
    place = Place("sqlite:///runs.db")  # no server is known that shows it
    _show(graph, result, ROWS, SimpleNamespace(place=place), as_json=False)  # type: ignore[arg-type] # a double
    assert capsys.readouterr().out.splitlines()[-1] == "run: mlflow-perf show r"


@pytest.mark.parametrize("status", ["FINISHED", "FAILED"])
def test_steps_that_have_run_are_no_wrong_input(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk does not take the table: nobody is to run the steps again for that."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pipeline, "_show", fail)
    monkeypatch.setattr(_tables, "drop_output", lambda: None)
    graph = Graph("g", "A title", "e", {"a": Step("a", "a", "x", None)})
    result = Result("r", "1", status)
    result.steps["a"] = Outcome("a", status, "it broke")
    said = "it broke" if status == "FAILED" else "The steps have run, .*: No space left on device"
    with pytest.raises(StepFailedError, match=said):
        pipeline._tell_end(graph, result, SimpleNamespace(), as_json=False)  # type: ignore[arg-type] # a double


_STREAMS = """
import os, sys
from mlflow_perf.cli import _tables
_tables.open_closed_streams()
print("out"); print("err", file=sys.stderr)
assert all(os.path.samestat(os.fstat(n), os.stat("/dev/null")) for n in (0, 1, 2))
assert os.open("/dev/zero", os.O_RDONLY) > 2
"""


def test_closed_streams_are_the_null_device() -> None:
    """azure-ai-ml needs a standard error, and no file of ours may have its number."""
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(_STREAMS)} <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0


def test_where_runs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--to first, then MLflow's own setting, then ./demo."""
    monkeypatch.chdir(tmp_path)
    uri = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:5001"}
    assert find_place(None, environ=uri).uri == "http://127.0.0.1:5001"
    assert find_place(tmp_path / "x", environ=uri).uri == f"sqlite:///{tmp_path}/x/mlflow.db"
    near = {"MLFLOW_TRACKING_URI": "sqlite:///near.db"}  # each step works in a folder of its own
    assert find_place(None, environ=near).uri == f"sqlite:////{str(tmp_path).lstrip('/')}/near.db"
    assert find_place(None, environ={}).folder == tmp_path / "demo"
    with pytest.raises(SettingError, match="not an address") as caught:
        find_place(Path("http://me:secret@127.0.0.1:5001"))
    assert "secret" not in str(caught.value)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in the way is said before anything runs."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot be made"):
        make_embedded_place(tmp_path / "file" / "store")


def test_links_open_the_runs_view(tmp_path: Path) -> None:
    """A link leads to the run, on the server that has it or on the one that `make ui` starts."""
    ends = "#/experiments/1/runs/r?workflowType=machine_learning"
    server = find_place(None, environ={"MLFLOW_TRACKING_URI": "http://host:5001/"})
    assert server.link("r", "1") == f"http://host:5001/{ends}"
    assert make_embedded_place(tmp_path).link("r", "1") == f"http://127.0.0.1:5000/{ends}"


def test_a_pipeline_without_monitored_tasks_keeps_its_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If no task was recorded, for example because the pipeline was stopped, a warning says so."""
    _import_spans(tmp_path / "parsl", tmp_path / "spans.sqlite3")
    assert "not among the spans" in caplog.text


def test_an_interrupt_ends_all_jobs_of_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    """A line says how many did not begin. One that fails does not: the others go on."""
    ran: list[str] = []

    def end(error: StepFailedError) -> None:
        ran.append(str(error))
        raise error

    stop = partial(end, PipelineStoppedError("", "stopped"))
    fail = partial(end, StepFailedError("a", "a failed"))
    with pytest.raises(PipelineStoppedError):
        _run_all([stop, partial(ran.append, "next")])
    told = "mlflow-perf: stopped: 1 job of the file did not begin\n"
    assert capsys.readouterr().err == told
    with pytest.raises(PipelineStoppedError):
        _run_all([stop])
    assert capsys.readouterr().err == ""
    with pytest.raises(StepFailedError, match="a failed"):
        _run_all([fail, partial(ran.append, "next")])
    assert ran == ["stopped", "stopped", "a failed", "next"]
