"""What runs of pipelines write is never part of a step's code."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipelines.test_runner import FakePool, RecordingTracking

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import Graph, Step
from mlflow_perf.pipelines.output_folder import MARKER, mark_output, mark_run, remove_outputs
from mlflow_perf.pipelines.runner import Runner
from mlflow_perf.pipelines.snapshot import copy_code
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import Outcome
from mlflow_perf.publish.workflow_writer import make_embedded_place

MINE = {"run.py", "work/notes.txt", "artifacts/model.bin", "demo/baseline.csv"}
RUN_ID = "0123456789abcdef" * 2


def _write(folder: Path, names: set[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def _names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def _copy(code: Path, target: Path) -> set[str]:
    copy_code(code, (), target)
    return _names(target)


def _run_pipeline(code: Path, to: Path, work: Path) -> list[set[str]]:
    """Run two steps with a store in `to`, and return the files that each had copied."""
    copied = []

    def behave(job: StepJob) -> Outcome:
        copy_code(job.step.code, (), job.folder / "code")
        copied.append(_names(job.folder / "code"))
        _write(job.folder, {"outputs/out/model", "logs/std_log.txt", "journals/a.journal"})
        return Outcome(job.step.name, "FINISHED", run_id="child")

    steps = {n: Step(n, n, "do", code) for n in ("one", "two")}
    tracking = RecordingTracking()
    tracking.place = make_embedded_place(to)
    stored = {"mlflow.db", "mlflow.db-journal", "spans.sqlite3", f"artifacts/{RUN_ID}/artifacts/x"}
    stored |= {f"artifacts/models/m-{RUN_ID}/artifacts/MLmodel"}
    graph = Graph(name="g", title="g", experiment="e", steps=steps, inputs={}, outputs={})
    runner = Runner(graph, tracking, work)  # type: ignore[arg-type] # a double

    def make_pool() -> FakePool:
        _write(to, stored)
        return FakePool(behave)

    runner.run(make_pool)
    return copied


def test_every_run_has_the_same_code(tmp_path: Path) -> None:
    """Runs into the same folder, another one, the code's own and a work folder of any name."""
    _write(tmp_path, MINE)
    places = [("demo", "demo/work/1"), ("demo", "demo/work/2"), ("x/y", "x/y/work/1")]
    places += [(".", "work/1"), ("demo", "by-hand"), (".", "work/2")]
    for to, work in places:
        copied = _run_pipeline(tmp_path, tmp_path / to, tmp_path / work)
        assert copied == [MINE, MINE], (to, work)


def test_folders_of_earlier_versions_are_recognised(tmp_path: Path) -> None:
    """Without a marker, the name of a run's work folder and the store beside it identify both."""
    code = tmp_path / "code"
    _write(code, MINE)
    run = "old/work/train-20260102-030405-0a1b"
    _write(code, {"old/mlflow.db", f"old/artifacts/{RUN_ID}/artifacts/x", f"{run}/fit/code/run.py"})
    assert _copy(code, tmp_path / "to") == MINE


def test_a_store_of_the_user_is_code(tmp_path: Path) -> None:
    """A database, or a file called as the marker, that no run of ours wrote is copied."""
    code = tmp_path / "code"
    mine = {"mlflow.db", "artifacts/x", f"lib/{MARKER}", "lib/a.py", "work/a-2026/b.py"}
    _write(code, mine)
    assert _copy(code, tmp_path / "to") == mine


def test_includes_have_no_output_either(tmp_path: Path) -> None:
    """An included folder is searched as the code is."""
    lib = tmp_path / "lib"
    _write(lib, {"a.py", "out/mlflow.db", "out/work/1/fit/code/a.py"})
    mark_output(lib / "out")
    mark_run(lib / "out" / "work" / "1")
    copy_code(None, (lib,), tmp_path / "to")
    assert _names(tmp_path / "to") == {"lib/a.py"}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The pipeline ends with one sentence."""
    _write(tmp_path, {"file"})
    with pytest.raises(PipelineError, match="file/work cannot be written: Not a directory"):
        mark_run(tmp_path / "file" / "work")


def test_what_is_mounted_in_a_folder_is_not_removed(tmp_path: Path) -> None:
    """A step may mount a store of its own there; before a repeat its half-written files go."""
    outputs = tmp_path / "out puts"
    for name in ("half", "deep/half", "deep/mounted/kept", "other/half", "at/kept"):
        (outputs / name).parent.mkdir(parents=True, exist_ok=True)
        (outputs / name).write_text("x")
    (outputs / "link").symlink_to(outputs / "at")
    escaped = str(outputs.resolve()).replace(" ", "\\040")
    rows = [f"30 1 0:1 / {place} rw - tmpfs tmpfs rw" for place in ("/", f"{escaped}/deep/mounted")]
    rows.append(f"31 1 0:1 / {escaped}/at rw - tmpfs tmpfs rw")
    mounts = tmp_path / "mountinfo"
    mounts.write_text("\n".join(rows))
    remove_outputs(outputs, mounts=mounts)
    left = {str(path.relative_to(outputs)) for path in outputs.rglob("*")}
    assert left == {"deep", "deep/mounted", "deep/mounted/kept", "at", "at/kept"}
    mounts.write_text("30 1 0:1 / / rw - tmpfs tmpfs rw")
    remove_outputs(outputs, mounts=mounts)
    assert not outputs.exists()
    remove_outputs(outputs, mounts=tmp_path / "none")
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "kept").touch()
    outputs.symlink_to(tmp_path / "user")
    mounts.write_text(f"30 1 0:1 / {tmp_path}/user/mounted rw - tmpfs tmpfs rw")
    remove_outputs(outputs, mounts=mounts)
    assert (tmp_path / "user" / "kept").exists()
