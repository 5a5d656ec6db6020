"""The order of a pipeline, its failures, an interrupt: with steps that only pretend to run."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines import runner as runner_module
from mlflow_perf.pipelines.graph import Graph, Parts, Port, Ref, Step
from mlflow_perf.pipelines.runner import Runner
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import Outcome, StepEndedError
from mlflow_perf.publish.journal_file import find_state_folder, read_head
from mlflow_perf.publish.pipeline_journal import explain_unfinished
from mlflow_perf.publish.workflow_writer import Place


@pytest.fixture(autouse=True)
def _reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "log_report", lambda *_: True)


class RecordingTracking:
    """Remembers what would be written to MLflow."""

    def __init__(self) -> None:
        self.place = Place("memory:")
        self.runs: dict[str, dict[str, Any]] = {}

    def experiment(self, name: str) -> str:
        return f"experiment {name}"

    def start(self, experiment_id: str, name: str, **facts: Any) -> str:
        run_id = f"run {len(self.runs)}"
        self.runs[run_id] = {"name": name, "experiment": experiment_id, **facts}
        return run_id

    def end(
        self, run_id: str, status: str, *, tags: Mapping[str, str] | None = None, ended: float = 0.0
    ) -> None:
        self.runs[run_id] |= {"status": status, "end_tags": dict(tags or {})}

    def metrics(self, run_id: str, values: Mapping[str, float], *, step: int = 0) -> None:
        self.runs[run_id]["metrics"] = dict(values)


class FakePool:
    """Runs each step at once, in this thread, as `behave` says."""

    def __init__(self, behave: Callable[[StepJob], Outcome]) -> None:
        self.behave = behave
        self.jobs: list[StepJob] = []
        self.closed = False
        self.lost = ""

    def fault(self) -> str:
        return self.lost

    def submit(self, job: StepJob, needed: list[Future[Outcome]]) -> Future[Outcome]:
        self.jobs.append(job)
        future: Future[Outcome] = Future()
        if any(f.exception() for f in needed):
            future.set_exception(type("DependencyError", (Exception,), {})())
            return future
        try:
            future.set_result(self.behave(job))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def close(self) -> None:
        self.closed = True


def _step(name: str, **facts: Any) -> Step:
    facts.setdefault("command", "do ${{inputs.data}} ${{outputs.out}}")
    facts.setdefault("inputs", {"data": Port("data", "uri_folder", optional=True)})
    facts.setdefault("outputs", {"out": Port("out", "uri_folder")})
    facts.setdefault("values", {"data": Path("/raw")})
    return Step(name=name, component=name, code=None, **facts)


def _chain() -> Graph:
    """Return first → second → third, and `alone` beside them."""
    steps = [
        _step("first"),
        _step("second", values={"data": Ref("first", "out")}),
        _step("third", values={"data": Ref("second", "out")}),
        _step("alone"),
    ]
    return Graph(
        name="chain",
        title="A chain",
        experiment="e",
        steps={s.name: s for s in steps},
        inputs={"rows": 3},
        outputs={"final": Ref("third", "out"), "side": Ref("alone", "out")},
    )


def _fine(job: StepJob) -> Outcome:
    return Outcome(job.step.name, "FINISHED", run_id=f"child {job.step.name}", duration_sec=1.0)


def _runner(graph: Graph, work: Path, **options: Any) -> tuple[Runner, RecordingTracking]:
    tracking = RecordingTracking()
    return Runner(graph, tracking, work, **options), tracking  # type: ignore[arg-type] # a double


def test_all_steps_run_and_the_outputs_are_told(tmp_path: Path) -> None:
    """A pipeline that works ends FINISHED, with its parent run's parameters and outputs."""
    runner, tracking = _runner(_chain(), tmp_path / "w")
    pool = FakePool(_fine)
    result = runner.run(lambda: pool)
    assert result.status == "FINISHED"
    assert list(result.steps) == ["first", "second", "third", "alone"]
    assert result.outputs["final"] == tmp_path / "w" / "third" / "outputs" / "out"
    assert pool.closed
    parent = tracking.runs[result.run_id]
    assert (parent["name"], parent["status"], parent["params"]) == (
        "A chain",
        "FINISHED",
        {"rows": 3},
    )


def test_commands_are_filled_with_the_paths_of_other_steps(tmp_path: Path) -> None:
    """A step reads where the step before it wrote."""
    pool = FakePool(_fine)
    _runner(_chain(), tmp_path / "w")[0].run(lambda: pool)
    jobs = {job.step.name: job for job in pool.jobs}
    w = tmp_path / "w"
    assert jobs["first"].step.command == f"do /raw {w}/first/outputs/out"
    assert jobs["second"].step.command == f"do {w}/first/outputs/out {w}/second/outputs/out"
    assert jobs["second"].params == {"data": f"{w}/first/outputs/out"}
    assert jobs["second"].tags["mlflow_perf.depends_on"] == "first"


def test_a_step_has_the_code_as_it_was_when_the_pipeline_began(tmp_path: Path) -> None:
    """An editor saves a file meanwhile."""
    (tmp_path / "code").mkdir()
    script = tmp_path / "code" / "run.py"
    script.write_text("old")
    seen = []

    def behave(job: StepJob) -> Outcome:
        assert job.step.code is not None
        seen.append((job.step.code / "run.py").read_text())
        script.write_text("new")
        return _fine(job)

    steps = {n: replace(s, code=tmp_path / "code") for n, s in _chain().steps.items()}
    runner, _ = _runner(replace(_chain(), steps=steps), tmp_path / "w")
    assert runner.run(lambda: FakePool(behave)).status == "FINISHED"
    assert seen == ["old"] * 4


def test_a_failed_step_fails_its_dependants_only(tmp_path: Path) -> None:
    """What needs the failed step is not run and says why; what does not, runs."""

    def behave(job: StepJob) -> Outcome:
        if job.step.name == "first":
            raise StepEndedError(Outcome("first", "FAILED", "it broke", run_id="child first"))
        return _fine(job)

    graph = _chain()
    both = _step("both", values={"data": Ref("first", "out"), "more": Ref("alone", "out")})
    graph.steps["both"] = both
    runner, tracking = _runner(graph, tmp_path / "w")
    result = runner.run(lambda: FakePool(behave))
    assert {n: o.status for n, o in result.steps.items()} == {
        "first": "FAILED",
        "second": "SKIPPED",
        "third": "SKIPPED",
        "alone": "FINISHED",
        "both": "SKIPPED",
    }
    assert result.status == "FAILED"
    assert result.steps["second"].message == "not run because first did not finish"
    assert result.steps["both"].message == "not run because first did not finish"
    assert set(result.outputs) == {"side"}
    unrun = [r for r in tracking.runs.values() if r["name"] in ("second", "third")]
    assert [r["status"] for r in unrun] == ["KILLED", "KILLED"]
    assert unrun[0]["parent"] == result.run_id
    assert [r["tags"]["mlflow_perf.status"] for r in unrun] == ["SKIPPED", "SKIPPED"]


def test_a_lost_worker_is_a_failed_step(tmp_path: Path) -> None:
    """If a worker vanishes, its step is FAILED and the step's run is ended."""

    def behave(job: StepJob) -> Outcome:
        if job.step.name == "alone":
            job.folder.mkdir(parents=True)
            (job.folder / "started").write_text("run 0")
            raise OSError("manager lost")
        return _fine(job)

    runner, _ = _runner(_chain(), tmp_path / "w")
    result = runner.run(lambda: FakePool(behave))
    assert result.steps["alone"].message == "its worker was lost: OSError: manager lost"
    assert result.steps["alone"].run_id == "run 0"
    # Where the step itself still runs, it stops.
    said = (tmp_path / "w" / "alone" / "stop").read_text()
    assert said == f"FAILED {result.steps['alone'].message}"
    kept = json.loads((tmp_path / "w" / "alone" / "record.json").read_text())
    assert kept["ended"] == (tmp_path / "w" / "alone" / "stop").stat().st_mtime
    assert kept["end_tags"]["mlflow_perf.status"] == "FAILED"


def test_a_lost_workers_step_is_finished_if_its_command_is(tmp_path: Path) -> None:
    """Only its report was on the way, and is sent from what it has left."""

    def behave(job: StepJob) -> Outcome:
        if job.step.name == "alone":
            job.folder.mkdir(parents=True)
            (job.folder / "started").write_text("run 0")
            (job.folder / "ended").write_text("FINISHED")
            raise OSError("manager lost")
        return _fine(job)

    runner, tracking = _runner(_chain(), tmp_path / "w")
    result = runner.run(lambda: FakePool(behave))
    assert (result.steps["alone"].status, result.steps["alone"].message) == ("FINISHED", "")
    assert (result.status, tracking.runs["run 0"]["status"]) == ("FINISHED", "FINISHED")
    kept = json.loads((tmp_path / "w" / "alone" / "record.json").read_text())
    assert kept["ended"] == (tmp_path / "w" / "alone" / "ended").stat().st_mtime
    assert kept["end_tags"] == {"mlflow_perf.status": "FINISHED"}


def test_a_step_that_no_worker_took_has_a_failed_run(tmp_path: Path) -> None:
    """All workers were lost before it began: it is a step of the workflow all the same."""

    def behave(job: StepJob) -> Outcome:
        if job.step.name == "alone":
            raise OSError("manager lost")
        return _fine(job)

    runner, tracking = _runner(_chain(), tmp_path / "w")
    result = runner.run(lambda: FakePool(behave))
    (run,) = [run for run in tracking.runs.values() if run["name"] == "alone"]
    assert (run["status"], run["parent"]) == ("FAILED", result.run_id)
    assert run["tags"]["mlflow_perf.error"] == "its worker was lost: OSError: manager lost"
    assert result.steps["alone"].status == "FAILED"


def test_a_lost_part_of_the_executor_ends_the_pipeline(tmp_path: Path) -> None:
    """Where no step can end any more, those that began have failed and their runs are ended."""

    class Losing(FakePool):
        def submit(self, job: StepJob, needed: list[Future[Outcome]]) -> Future[Outcome]:
            if job.step.name == "alone":
                self.lost = "the interchange ended with -9"
                job.folder.mkdir(parents=True)
                (job.folder / "started").write_text("run 0")
                return Future()
            if job.step.name == "first":
                return super().submit(job, needed)
            return Future()

    pool = Losing(_fine)
    runner, tracking = _runner(_chain(), tmp_path / "w")
    result = runner.run(lambda: pool)
    assert {n: (o.status, o.message) for n, o in result.steps.items()} == {
        "first": ("FINISHED", ""),
        "second": ("SKIPPED", "not run because the interchange ended with -9"),
        "third": ("SKIPPED", "not run because the interchange ended with -9"),
        "alone": ("FAILED", "the interchange ended with -9"),
    }
    assert (result.status, pool.closed) == ("FAILED", True)
    assert (tmp_path / "w" / "stop").exists()
    assert tracking.runs["run 0"]["status"] == "FAILED"


def test_an_interrupt_stops_everything_and_ends_the_runs(tmp_path: Path) -> None:
    """Ctrl-C leaves word for the steps, and no run open."""

    class Interrupted(FakePool):
        def submit(self, job: StepJob, needed: list[Future[Outcome]]) -> Future[Outcome]:
            if job.step.name == "second":
                raise KeyboardInterrupt
            return super().submit(job, needed)

    pool = Interrupted(_fine)
    runner, tracking = _runner(_chain(), tmp_path / "w")
    result = runner.run(lambda: pool)
    assert (result.status, pool.closed) == ("KILLED", True)
    assert result.steps["first"].status == "FINISHED"
    assert result.steps["third"].message == "not run because the pipeline was stopped"
    assert (tmp_path / "w" / "stop").exists()
    assert tracking.runs[result.run_id]["status"] == "KILLED"


@pytest.mark.parametrize("report", [KeyboardInterrupt(), False])
def test_a_report_that_is_not_made_is_left_to_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, report: Any
) -> None:
    """An impatient Ctrl-C ends it, or MLflow does not take it: the journal stays, and is named."""

    def log_report(*_: object) -> bool:
        if isinstance(report, KeyboardInterrupt):
            raise report
        return bool(report)

    monkeypatch.setattr(runner_module, "log_report", log_report)
    runner, tracking = _runner(_chain(), tmp_path / "w")
    is_stopped = isinstance(report, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if is_stopped else contextlib.nullcontext():
        runner.run(lambda: FakePool(_fine))
    assert tracking.runs["run 0"]["status"] == "FINISHED"
    (journal,) = find_state_folder().glob("chain.pipeline*.journal")
    assert read_head(journal)["delivery"]["run_id"] == "run 0"
    assert "mlflow-perf recover sends it" in caplog.text


def test_a_store_that_refuses_the_pipeline_is_said_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow would try again for minutes, without a word; `recover` has the reason."""
    name, tries = "MLFLOW_HTTP_REQUEST_MAX_RETRIES", list[str | None]()
    monkeypatch.delenv(name, raising=False)

    def refuse(*_: object, **__: object) -> str:
        tries.append(os.environ.get(name))
        raise ConnectionError("HTTP 500")

    monkeypatch.setattr(RecordingTracking, "start", refuse)
    runner, _ = _runner(_chain(), tmp_path / "w")
    with pytest.raises(ConnectionError):
        runner.run(lambda: FakePool(_fine))
    assert (tries, os.environ.get(name)) == (["2"], None)
    (journal,) = find_state_folder().glob("chain.pipeline*.journal")
    assert "its run could not be made: ConnectionError: HTTP 500" in journal.read_text()
    assert explain_unfinished(tmp_path / "w") == "", "recover ends a run of which no answer came"


def test_steps_that_a_further_interrupt_left_open_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the runs of steps are ended: what is left of them is sent all the same."""
    sent: set[Path] = set()
    monkeypatch.setattr(runner_module, "send_left", lambda _, work: sent.add(work))
    monkeypatch.setattr(RecordingTracking, "start", _interrupt_after(1))

    def behave(job: StepJob) -> Outcome:
        raise StepEndedError(Outcome(job.step.name, "FAILED", "it broke", run_id="child"))

    runner, _ = _runner(_chain(), tmp_path / "w")
    with pytest.raises(KeyboardInterrupt):
        runner.run(lambda: FakePool(behave))
    assert sent == {tmp_path / "w"}


def _interrupt_after(calls: int) -> Callable[..., str]:
    """Return a method that raises an interrupt after some calls."""
    left = iter(range(calls))

    def start(*_: object, **__: object) -> str:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return "run 0"

    return start


def test_a_command_that_cannot_be_filled_is_said_before_anything_runs(tmp_path: Path) -> None:
    """A component's typing error is named with its step, and no run is started."""
    graph = Graph("g", "g", "e", {"a": _step("a", command="x ${{outputs.uot}}")})
    with pytest.raises(PipelineError, match=r"Step 'a': .*outputs\.uot.*did you mean 'out'"):
        _runner(graph, tmp_path / "w")


def test_a_work_folder_that_a_shell_splits_is_refused(tmp_path: Path) -> None:
    """Commands do not quote paths, so a space in the folder's path is reported at once."""
    with pytest.raises(PipelineError, match="work folder"):
        _runner(_chain(), tmp_path / "my work")


def test_an_input_that_a_shell_splits_is_reached_through_a_link(tmp_path: Path) -> None:
    """An input's name may hold anything: the command gets a plain one, the run the true one."""
    data = tmp_path / "my data (1).csv"
    data.write_text("x")
    pool = FakePool(_fine)
    steps = {"a": _step("a", values={"data": data})}
    _runner(Graph("g", "g", "e", steps), tmp_path / "w")[0].run(lambda: pool)
    word = pool.jobs[0].step.command.split()[1]
    assert Path(word).read_text() == "x"
    assert word.endswith("/my_data__1_.csv")
    assert pool.jobs[0].params == {"data": str(data)}


def test_texts_around_outputs_are_joined(tmp_path: Path) -> None:
    """An embedded reference becomes the path within its text."""
    steps = {
        "a": _step("a"),
        "b": _step("b", values={"data": Parts(("--from=", Ref("a", "out"), "/x"))}),
    }
    pool = FakePool(_fine)
    _runner(Graph("g", "g", "e", steps), tmp_path / "w")[0].run(lambda: pool)
    assert f"--from={tmp_path}/w/a/outputs/out/x" in pool.jobs[1].step.command


def test_the_watcher_hears_each_end(tmp_path: Path) -> None:
    """Progress is printed as it happens, with the outcome."""
    heard: list[tuple[str, str]] = []
    runner, _ = _runner(
        _chain(), tmp_path / "w", watch=lambda n, what, o: heard.append((n, o.status))
    )
    runner.run(lambda: FakePool(_fine))
    assert sorted(heard) == sorted((n, "FINISHED") for n in _chain().steps)


@pytest.mark.parametrize("is_back", [True, False])
def test_what_mlflow_did_not_take_of_a_step_is_sent_at_the_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_back: bool,
) -> None:
    """Where it cannot be sent then either, the pipeline's journal stays, and one line says so."""
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path / "state"))
    sent: list[Path] = []

    def send_left(_: str, work: Path) -> bool:
        sent.append(work)
        if not is_back:
            raise RuntimeError("it is still away")
        return True

    monkeypatch.setattr(runner_module, "send_left", send_left)
    runner, _ = _runner(_chain(), tmp_path / "w")
    runner.run(
        lambda: FakePool(lambda job: replace(_fine(job), is_logged=job.step.name != "alone"))
    )
    assert sent == [tmp_path / "w"]
    assert bool(list((tmp_path / "state").glob("*.journal"))) is not is_back
    told = [one for one in caplog.records if "mlflow-perf recover" in one.getMessage()]
    assert len(told) == (0 if is_back else 1)


def test_an_executor_that_cannot_be_made_ends_the_run_with_its_time(tmp_path: Path) -> None:
    """The parent run does not say that the attempt took no time at all."""
    runner, tracking = _runner(_chain(), tmp_path / "w")

    def fail() -> FakePool:
        raise PipelineError("no nodes")

    with pytest.raises(PipelineError, match="no nodes"):
        runner.run(fail)
    assert tracking.runs["run 0"]["status"] == "FAILED"
    assert tracking.runs["run 0"]["end_tags"] == {"mlflow_perf.error": "PipelineError: no nodes"}
    assert tracking.runs["run 0"]["metrics"]["duration_sec"] > 0


def test_a_work_folder_that_cannot_be_made_ends_the_run(tmp_path: Path) -> None:
    """No parent run is left RUNNING for ever."""
    (tmp_path / "w").write_text("a file")
    runner, tracking = _runner(_chain(), tmp_path / "w" / "work")
    with pytest.raises(PipelineError, match="work cannot be written"):
        runner.run(lambda: FakePool(_fine))
    assert tracking.runs["run 0"]["status"] == "FAILED"
