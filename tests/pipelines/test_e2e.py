"""Pipelines with real parts: azure-ai-ml, Parsl, processes, MPI where there is one, MLflow."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from mlflow_perf.cli import main
from mlflow_perf.pipelines.launch import make_search_path

Write = Callable[[Path, str, str], Path]
pytest.importorskip("parsl")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SCRIPT = """
import argparse, json, os, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
for flag in ("--rows", "--kind", "--fast", "--rate", "--folder", "--file", "--out", "--one"):
    parser.add_argument(flag)
args = parser.parse_args()
names = ("FROM", "BOTH", "MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "MASTER_PORT", "PARSL_WORKER_RANK")
facts = {name: os.environ.get(name) for name in names}
from mlflow_perf.node.place import detect
node = detect()
facts |= {"args": vars(args), "node": node.as_dict(), "code": sorted(os.listdir("."))}
Path(args.out, f"{node.rank}.json").write_text(json.dumps(facts))
Path(args.one).write_text("one file")
if args.folder:
    facts["read"] = sorted(os.listdir(args.folder))
print("working on", args.rows, "rows", flush=True)
Path("outputs", "kept.txt").write_text(os.environ["AZURE_ML_INPUT_rows"])
if args.rows == "11":
    import mlflow_perf
    with mlflow_perf.report("by_itself"):
        time.sleep(0.2)
if args.kind == "b":
    sys.exit("the rows are wrong")
if args.rate == "0.5":
    time.sleep(60)
if args.fast == "True" and not Path("../tried").exists():
    Path("../tried").write_text("once")
    sys.exit(4)
"""

PIPELINE = """
    from azure.ai.ml import Output, command
    from azure.ai.ml.dsl._group_decorator import group

    say = command(
        name="say",
        command="echo ${{inputs.text}} $[[but ${{inputs.also}}]] | tee ${{outputs.said}}",
        inputs={"text": Input(type="string"), "also": Input(type="string", optional=True)},
        outputs={"said": Output(type="uri_file")}, environment="x@latest",
    )

    without = "env -u PYTHONPATH python -c 'import "
    look = command(
        name="look",
        command=f"{without}mlflow' || {without}mlflow_perf' || echo neither",
        environment="x@latest",
    )

    @group
    class Sizes:
        rows: int = 3
        kind: str = "a"

    @dsl.pipeline()
    def _inner(folder: Input(type="uri_folder"), rows: int = 1):
        deep = make(rows=rows, folder=folder)
        return {"result": deep.outputs.out}

    @dsl.pipeline(name="all_of_it", display_name="All of it", experiment_name="e2e")
    def all_of_it(rows: int = 3, sizes: Sizes = Sizes()):
        first = make(rows=rows)
        nested = _inner(folder=first.outputs.out, rows=sizes.rows)
        said = say(text=f"{rows} rows of {sizes.kind}")
        said_more = say(text="x", also="y")
        bare = look()
        first.environment_variables = {"BOTH": "node"}
        second = make(rows=4, folder=first.outputs.out, file=first.outputs.one)
        broken = make(rows=5, kind="b")
        after = make(rows=6, folder=broken.outputs.out)
        two_nodes = make(rows=7)
        two_nodes.distribution = MpiDistribution(process_count_per_instance=2)
        two_nodes.resources = {"instance_count": 2}
        torch = make(rows=8)
        torch.distribution = PyTorchDistribution(process_count_per_instance=1)
        torch.resources = {"instance_count": 2}
        late = make(rows=9, rate=0.5)
        late.set_limits(timeout=2)
        flaky = make(rows=10, fast=True)
        flaky.retry_settings = {"max_retries": 1}
        return {"final": second.outputs.out}
"""


@dataclass
class Ran:
    """What a command gave back, and the client of its store."""

    code: int
    out: Any
    err: str
    client: Any

    def step(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(s for s in self.out["steps"] if s["step"] == name)
        return found

    def run_of(self, name: str) -> Any:
        return self.client.get_run(self.step(name)["run_id"])

    def written(self, name: str, rank: int = 0) -> Any:
        path = self.folder(name) / "outputs" / "out"
        return json.loads((path / f"{rank}.json").read_text())

    def folder(self, name: str) -> Path:
        return Path(self.out["outputs"]["final"]).parents[2] / name


def _environ() -> dict[str, str]:
    import mlflow_perf

    source = str(Path(mlflow_perf.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "PATH": make_search_path(os.environ)}


def _command(path: Path, store: Path, *options: str) -> list[str]:
    run = [sys.executable, "-m", "mlflow_perf", "pipeline", "run", str(path), "--to", str(store)]
    return [*run, *options]


def _ran(store: Path, code: int, out: str, err: str) -> Ran:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store}/mlflow.db")
    return Ran(code, json.loads(out), err, client)


def _run(path: Path, store: Path, *options: str) -> Ran:
    """Run a pipeline in a process of its own."""
    done = subprocess.run(
        _command(path, store, "--json", *options),
        env=_environ(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return _ran(store, done.returncode, done.stdout or "{}", done.stderr)


def _run_here(path: Path, store: Path, *options: str) -> Ran:
    """Run a pipeline in this process, which has imported all that takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _environ().items():
            patch.setenv(name, value)
        patch.setenv("MLFLOW_TRACKING_URI", "set by the command")
        arguments = ["pipeline", "run", str(path), "--to", str(store), "--json", *options]
        done = CliRunner().invoke(main, arguments)
    return _ran(store, done.exit_code, done.stdout or "{}", done.stderr)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, _migrated_store: Path) -> Path:
    """One store for all: a new one takes seconds to make."""
    folder = tmp_path_factory.mktemp("store")
    shutil.copy(_migrated_store, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, store: Path, write_files: Write) -> Ran:
    """The pipeline above, run once with `--set rows=12`."""
    path = write_files(tmp_path_factory.mktemp("pipe"), SCRIPT, PIPELINE)
    make = path.parent / "make"
    with (make / "component.yaml").open("a") as spec:
        spec.write("additional_includes: [../library]\n")
    (make / ".amlignore").write_text("*.log\n")
    (make / "left.log").write_text("stays behind")
    (path.parent / "library").mkdir()
    (path.parent / "library" / "part.py").write_text("")
    venv.create(path.parent / "bare", symlinks=True)
    bare = f"bare={path.parent / 'bare'}"
    return _run_here(path, store, "--set", "rows=12", "--set", "sizes.rows=11", "--python", bare)


def test_each_step_ends_as_it_should(ran: Ran) -> None:
    """What fails fails its dependants only, and the exit code says that something did."""
    assert {s["step"]: s["status"] for s in ran.out["steps"]} == {
        "first": "FINISHED",
        "nested.deep": "FINISHED",
        "said": "FINISHED",
        "said_more": "FINISHED",
        "bare": "FINISHED",
        "second": "FINISHED",
        "broken": "FAILED",
        "after": "SKIPPED",
        "two_nodes": "FINISHED",
        "torch": "FINISHED",
        "late": "FAILED",
        "flaky": "FINISHED",
    }
    assert ran.code == 1


def test_the_failure_is_one_line_with_step_reason_and_log(ran: Ran) -> None:
    """Standard error names the step, the exit code, the script's last words and the log."""
    told = [line for line in ran.err.splitlines() if line.startswith("mlflow-perf: ")]
    assert "x@latest is not used: said, said_more run with this Python" in "\n".join(told)
    lines = [line for line in told if " failed: " in line]
    assert len(lines) == 2
    assert lines[0].startswith(
        "mlflow-perf: Step 'broken' failed: the command ended with exit code 1: the rows are wrong."
    )
    assert "took longer than its limit of 2 s" in lines[1]
    assert Path(lines[0].rpartition("Its log: ")[2]).is_dir()
    assert "Traceback" not in ran.err


def test_parent_and_children_stand_in_mlflow(ran: Ran) -> None:
    """The parent holds the inputs; each child points to it and holds its own parameters."""
    parent = ran.client.get_run(ran.out["run_id"])
    assert parent.data.params["rows"] == "12"
    assert (parent.info.run_name, parent.info.status) == ("All of it", "FAILED")
    second = ran.run_of("second")
    assert second.data.tags["mlflow.parentRunId"] == ran.out["run_id"]
    assert second.data.params["rows"] == "4"
    tags = ran.run_of("late").data.tags
    assert tags["mlflow_perf.cause"] == tags["mlflow_perf.error"]  # not the SIGTERM of ours
    assert tags["mlflow_perf.status"] == "FAILED"
    statuses = {n: ran.run_of(n).info.status for n in ("first", "broken", "after", "late")}
    assert statuses == {
        "first": "FINISHED",
        "broken": "FAILED",
        "after": "KILLED",
        "late": "FAILED",
    }
    assert ran.run_of("first").data.params["rows"] == "12"


def test_a_step_that_does_not_report_is_measured(ran: Ran) -> None:
    """Its run has metrics, document, report and verdict, and they are its processes' own."""
    run = ran.run_of("second")
    assert run.data.metrics["job_cpu_hours"] > 0
    assert run.data.metrics["job_max_mem_mb"] > 5
    assert run.data.tags["mlflow_perf.component"] == "make"
    assert run.data.tags["mlflow_perf.bottleneck"]
    assert "mlflow_perf.cause" not in run.data.tags
    files = {item.path for item in ran.client.list_artifacts(run.info.run_id)}
    assert {"logs", "outputs", "perf", "perf_report.html"} <= files
    assert ran.step("second")["reported"] is False
    assert ran.run_of("broken").data.tags["mlflow_perf.status"] == "FAILED"
    assert ran.step("two_nodes")["max_mem_mb"] > 5


def test_a_step_of_an_environment_without_mlflow_is_measured(ran: Ran) -> None:
    """The step's own Python has neither MLflow nor us; the runner's measures it."""
    log = ran.folder("bare") / "logs" / "std_log.txt"
    assert log.read_text().splitlines()[-1] == "neither"
    assert ran.run_of("bare").data.metrics["job_cpu_hours"] > 0
    assert ran.run_of("bare").info.status == "FINISHED"


def test_a_step_that_reports_is_left_alone(ran: Ran) -> None:
    """Its own block is what its run has, and nothing is counted twice."""
    step, run = ran.step("nested.deep"), ran.run_of("nested.deep")
    assert step["reported"] is True
    assert run.data.tags["mlflow_perf.component"] == "by_itself"
    assert "mlflow_perf.components" not in run.data.tags


def test_the_log_is_an_artifact(ran: Ran, tmp_path: Path) -> None:
    """What a step printed is in its run, whether it worked or not."""
    run_id = ran.step("broken")["run_id"]
    folder = ran.client.download_artifacts(run_id, "logs", str(tmp_path))
    text = (Path(folder) / "std_log.txt").read_text()
    assert text.splitlines() == ["working on 5 rows", "the rows are wrong"]


def test_a_step_sees_its_run_and_no_launcher(ran: Ran) -> None:
    """The environment leads the script to its own run; the pool's variables are not its."""
    facts = ran.written("first")
    assert facts["MLFLOW_RUN_ID"] == ran.step("first")["run_id"]
    assert facts["MLFLOW_TRACKING_URI"].startswith("sqlite:///")
    assert (facts["FROM"], facts["BOTH"], facts["PARSL_WORKER_RANK"]) == ("component", "node", None)
    assert facts["node"]["count"] == 1


def test_a_step_runs_in_what_azure_would_upload(ran: Ran) -> None:
    """The snapshot holds the code and the included folders, without the files in `.amlignore`."""
    code = ["component.yaml", "library", "logs", "outputs", "script.py"]
    assert ran.written("first")["code"] == code


def test_a_nested_pipeline_runs(ran: Ran) -> None:
    """A nested step takes the outer step's output and a member of a group that --set changed."""
    args = ran.written("nested.deep")["args"]
    assert (args["rows"], Path(args["folder"]).parent.parent.name) == ("11", "first")
    assert ran.run_of("nested.deep").data.tags["mlflow_perf.depends_on"] == "first"


def test_texts_and_optional_parts_reach_the_command(ran: Ran) -> None:
    """Inputs inside a text are filled in; a part in $[[…]] stays only if its input is given."""
    assert ran.written("second")["args"]["rate"] is None
    said = [ran.folder(name) / "outputs" / "said" for name in ("said", "said_more")]
    assert [path.read_text().strip() for path in said] == ["12 rows of a", "x but y"]


def test_files_and_folders_travel_between_steps(ran: Ran) -> None:
    """A step reads the folder and the file that the step before it wrote."""
    args = ran.written("second")["args"]
    assert (Path(args["folder"]) / "0.json").is_file()
    assert Path(args["file"]).read_text() == "one file"


@pytest.mark.parametrize(
    ("step", "places"),
    [
        ("two_nodes", [(0, 2, 0), (0, 2, 1), (1, 2, 0), (1, 2, 1)]),
        ("torch", [(0, 2, 0), (1, 2, 0)]),
    ],
)
def test_ranks_are_real_processes(ran: Ran, step: str, places: list[tuple[int, ...]]) -> None:
    """Each rank of a distributed step runs, finds its node, and logs to one run."""
    found = [ran.written(step, rank) for rank in range(len(places))]
    seen = [(f["node"]["index"], f["node"]["count"], f["node"]["local_rank"]) for f in found]
    assert seen == places
    assert len({f["MLFLOW_RUN_ID"] for f in found}) == 1


def test_a_step_is_tried_again(ran: Ran) -> None:
    """A step with retries that fails once ends well, and its run keeps what both attempts used."""
    run = ran.run_of("flaky")
    assert run.data.tags["mlflow_perf.attempts"] == "2"
    assert "mlflow_perf.cause" not in run.data.tags
    files = [item.path for item in ran.client.list_artifacts(run.info.run_id, "perf")]
    assert sum(path.startswith("perf/replaced-node-0-") for path in files) == 1


ONE = """
    @dsl.pipeline(experiment_name="e2e")
    def one(rows: int = 3):
        first = make(rows=rows)
        second = make(folder=first.outputs.out)
        return {"final": second.outputs.out}
"""


@pytest.mark.slow
def test_htex_runs_the_same_pipeline(tmp_path: Path, store: Path, write_files: Write) -> None:
    """Steps run in workers of Parsl's own, and find themselves in a job of one node.

    With --monitor its tasks, workers and their states become spans.
    """
    own = tmp_path / "store"
    own.mkdir()
    shutil.copy(store / "mlflow.db", own / "mlflow.db")
    ran = _run(write_files(tmp_path, SCRIPT, ONE), own, "--on", "htex", "--monitor")
    assert ran.code == 0, ran.err
    facts = ran.written("first")
    assert (facts["PARSL_WORKER_RANK"], facts["node"]["launcher"]) == (None, "local")
    assert _spans(own / "spans.sqlite3") == {"workflow": 1, "block": 1, "node": 1, **TASKS}
    assert _states(own / "spans.sqlite3") >= {"launched", "running", "running_ended", "exec_done"}


@pytest.mark.slow
def test_a_worker_that_is_lost_after_the_command_is_no_loss(
    tmp_path: Path, store: Path, write_files: Write
) -> None:
    """Another one sends the step's report; then the steps run that need it."""
    own = tmp_path / "store"
    own.mkdir()
    shutil.copy(store / "mlflow.db", own / "mlflow.db")
    process = subprocess.Popen(
        _command(write_files(tmp_path, SCRIPT, ONE), own, "--json", "--on", "htex"),
        env=_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ended = _wait_for(lambda: next(own.glob("work/*/first/ended"), None))
    _wait_for(lambda: ended.read_text().startswith("FINISHED") or None)
    wrapper = next(one for one in psutil.process_iter(["cmdline"]) if _is_of(one, ended.parent))
    next(above for above in wrapper.parents() if "spawn_main" in " ".join(above.cmdline())).kill()
    out, err = process.communicate(timeout=300)
    ran = _ran(own, process.returncode, out, err)
    assert ran.code == 0, err
    assert [step["status"] for step in ran.out["steps"]] == ["FINISHED", "FINISHED"]
    assert ran.run_of("first").data.metrics["duration_sec"] > 0


def _is_of(process: psutil.Process, step: Path) -> bool:
    return any(str(step) in argument for argument in process.info["cmdline"] or [])


TASKS = {"task": 2, "try": 2}


def _spans(db: Path) -> dict[str, int]:
    """Return the number of spans of each type that Parsl's monitoring knows."""
    with closing(sqlite3.connect(db)) as connection:
        query = "SELECT type, count(*) FROM span GROUP BY type"
        found = dict(connection.execute(query).fetchall())
    return {name.removeprefix("parsl.monitoring."): count for name, count in found.items()}


def _states(db: Path) -> set[str]:
    with closing(sqlite3.connect(db)) as connection:
        return {row[0] for row in connection.execute("SELECT DISTINCT type FROM event")}


def test_any_parsl_configuration_runs_it(tmp_path: Path, store: Path, write_files: Write) -> None:
    """--on takes a file that defines a Parsl configuration; --monitor makes its tasks spans."""
    config = tmp_path / "config.py"
    config.write_text(
        "from parsl.config import Config\n"
        "from parsl.executors import ThreadPoolExecutor\n"
        "config = Config(executors=[ThreadPoolExecutor(max_threads=1)], strategy='none')\n"
        f"config.run_dir = {str(tmp_path / 'parsl')!r}\n"
    )
    ran = _run_here(write_files(tmp_path, SCRIPT, ONE), store, "--on", str(config), "--monitor")
    assert ran.code == 0, ran.err
    assert [s["status"] for s in ran.out["steps"]] == ["FINISHED", "FINISHED"]
    found = _spans(store / "spans.sqlite3")
    assert {name: found[name] for name in TASKS} == TASKS


LONG_NAME = "训练" * 50  # more bytes than a file's name may have

OTHER_STORES = """
type: pipeline
display_name: {name}
jobs:
  in_script:
    type: command
    command: >
      {python} -c "import mlflow, mlflow_perf; mlflow.set_tracking_uri('sqlite:///{db}');
      mlflow_perf.report('inner')(print)(1)"
    environment: azureml:x@latest
  in_variables:
    type: command
    command: >
      {python} -c "import mlflow_perf; mlflow_perf.report('inner')(print)(1)"
    environment: azureml:x@latest
    environment_variables: {{MLFLOW_TRACKING_URI: "http://127.0.0.1:9"}}
"""


def test_steps_that_choose_other_stores_have_their_figures(tmp_path: Path, store: Path) -> None:
    """The run of a step is in the pipeline's store; what goes elsewhere waits for that store."""
    path = tmp_path / "stores.yml"
    path.write_text(
        OTHER_STORES.format(name=LONG_NAME, python=sys.executable, db=tmp_path / "other.db")
    )
    ran = _run_here(path, store)
    assert ran.code == 0, ran.err
    for name in ("in_script", "in_variables"):
        run = ran.run_of(name)
        assert run.info.status == "FINISHED"
        assert run.data.metrics["duration_sec"] > 0
    assert ran.run_of("in_script").data.tags["mlflow_perf.component"] == "inner"
    (kept,) = store.glob("work/训*/**/*.journal")
    assert kept.parts[-3:-1] == ("in_variables", "journals")


LONG = """
    @dsl.pipeline(experiment_name="e2e")
    def long():
        waits = make(rate=0.5)
        after = make(folder=waits.outputs.out)
"""


def test_an_interrupt_stops_every_step(tmp_path: Path, store: Path, write_files: Write) -> None:
    """Ctrl-C ends the processes and the runs within seconds, and says so."""
    path = write_files(tmp_path, SCRIPT, LONG)
    process = subprocess.Popen(
        _command(path, store, "--json"),
        env=_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    before = set((store / "work").glob("long-*"))
    log = _wait_for(lambda: next(_new_logs(store, before), None))
    _wait_for(lambda: "working on" in log.read_text() or None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    found = json.loads(out)
    assert (process.returncode, found["status"]) == (1, "KILLED")
    assert {s["step"]: s["status"] for s in found["steps"]} == {
        "waits": "KILLED",
        "after": "SKIPPED",
    }
    assert "Stopped by an interrupt" in err
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store}/mlflow.db")
    assert client.get_run(found["run_id"]).info.status == "KILLED"
    assert client.get_run(found["steps"][0]["run_id"]).info.status == "KILLED"


def _new_logs(store: Path, before: set[Path]) -> Iterator[Path]:
    for folder in set((store / "work").glob("long-*")) - before:
        yield from folder.glob("waits/logs/std_log.txt")


def _wait_for(find: Callable[[], Any]) -> Any:
    end = time.monotonic() + 200
    while (found := find()) is None:
        assert time.monotonic() < end, "it did not begin within minutes"
        time.sleep(0.05)
    return found
