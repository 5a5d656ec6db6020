"""Where steps run: the names, the files, and the examples for clusters that ship."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("parsl")

from parsl.dataflow import dflow

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines import executors
from mlflow_perf.pipelines.executors import Pool, load_config, read_outcome
from mlflow_perf.pipelines.graph import Step
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import Outcome, StepEndedError
from mlflow_perf.publish.workflow_writer import Place

CLUSTERS = Path(__file__).resolve().parents[2] / "pipelines" / "clusters"


def test_threads_and_htex_are_names(tmp_path: Path) -> None:
    """The two that need no file make their configuration for a folder."""
    for name, kind in (("threads", "ThreadPoolExecutor"), ("htex", "HighThroughputExecutor")):
        config = load_config(name)(tmp_path)
        assert type(config.executors[0]).__name__ == kind
        assert config.run_dir == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "must define one parsl.config.Config, but defines no object"),
        (
            "from parsl.config import Config\na = Config(executors=[])\nb = Config(executors=[])",
            "defines 2 objects",
        ),
        ("1 / 0", "fails: ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "fails: SystemExit: 0"),
        ("from parsl.providers import NotThere", "fails: ImportError"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    """What is wrong with the file is said before anything runs."""
    path = tmp_path / "config.py"
    path.write_text(text)
    with pytest.raises(PipelineError, match=message):
        load_config(str(path))


@pytest.mark.parametrize(
    ("on", "message"),
    [("slurm", "none of threads, htex and azureml"), ("gone.py", "gone.py does not exist")],
)
def test_a_place_that_is_none(on: str, message: str) -> None:
    """An unknown name and a missing file have different messages."""
    with pytest.raises(PipelineError, match=message):
        load_config(on)


@pytest.fixture
def kubernetes_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Parsl asks of the package `kubernetes` when a provider is made."""
    from parsl.providers.kubernetes import kube

    monkeypatch.setattr(kube, "_kubernetes_enabled", True)
    config = SimpleNamespace(load_kube_config=lambda: None)
    client = SimpleNamespace(CoreV1Api=lambda: None)
    monkeypatch.setattr(kube, "config", config, raising=False)
    monkeypatch.setattr(kube, "client", client, raising=False)


@pytest.mark.usefixtures("kubernetes_client")
@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("slurm", "SlurmProvider"),
        ("pbs", "PBSProProvider"),
        ("kubernetes", "KubernetesProvider"),
    ],
)
def test_the_examples_for_clusters_construct(name: str, provider: str, tmp_path: Path) -> None:
    """Each shipped example makes a configuration of the installed Parsl."""
    config = load_config(str(CLUSTERS / f"{name}.py"))(tmp_path)
    (executor,) = config.executors
    assert type(executor.provider).__name__ == provider
    assert bool(getattr(executor, "enable_mpi_mode", False)) == (name != "kubernetes")


class _Done:
    """A future that is done."""

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._value


FAILED = Outcome("a", "FAILED", "it broke")


@pytest.mark.parametrize(
    ("future", "status", "message"),
    [
        (_Done(Outcome("a", "FINISHED")), "FINISHED", ""),
        (_Done(error=StepEndedError(FAILED)), "FAILED", "it broke"),
        (_Done(error=type("DependencyError", (Exception,), {})("x")), "SKIPPED", ""),
        (_Done(error=OSError("gone")), "FAILED", "its worker was lost: OSError: gone"),
        (
            _Done(
                error=type("BadStateException", (Exception,), {})(
                    "Executor slurm failed due to: Error 1:\n\tsbatch: error: invalid partition "
                    "specified: gpu\n\tsbatch: error: invalid partition specified: gpu\n"
                )
            ),
            "FAILED",
            (
                "no worker could be started: Executor slurm failed due to: Error 1: sbatch: error: "
                "invalid partition specified: gpu"
            ),
        ),
    ],
)
def test_every_future_is_an_outcome(future: Any, status: str, message: str) -> None:
    """However a step's future ends, the runner gets a record."""
    outcome = read_outcome("a", future, had_workers=False)
    assert (outcome.status, outcome.message) == (status, message)
    later = read_outcome("a", future, had_workers=True)
    assert later.message == message.replace(
        "no worker could be started", "all its workers were lost"
    )


def test_an_outcome_survives_the_way_between_machines() -> None:
    """What a step raises can be pickled, for HTEX sends it."""
    import pickle

    back = pickle.loads(pickle.dumps(StepEndedError(FAILED)))
    assert back.outcome == FAILED


def test_parsl_is_kept_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of threads starts and stops without a word, however much a script lets be logged."""
    make: Callable[[Path], Any] = load_config("threads")
    monkeypatch.setattr(logging.getLogger("parsl"), "propagate", True)
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logging.getLogger().addHandler(handler)
    try:
        pool = Pool(make, tmp_path / "parsl")
        pool.close()
    finally:
        logging.getLogger().removeHandler(handler)
    assert written.getvalue() == ""


def test_the_interchange_hears_no_signal_to_all_processes(tmp_path: Path) -> None:
    """`timeout` and supervisors send one; the runner needs it to stop steps and release nodes."""
    with closing(Pool(load_config("htex"), tmp_path / "parsl")) as pool:
        executor: Any = pool._executors[0]
        assert os.getpgid(executor.interchange_proc.pid) != os.getpgid(0)
        assert pool.fault() == ""


@pytest.mark.parametrize(
    ("answer", "told"), [([True], False), ([False], True), (OSError("no scancel"), True)]
)
def test_nodes_are_released_where_parsl_hangs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: Any,
    *,
    told: bool,
) -> None:
    """An allocation would go on to its time limit; one that cannot be released is named."""
    pool = Pool(load_config("threads"), tmp_path / "parsl")
    asked, hanging = [], Event()

    def cancel(jobs: list[str]) -> list[bool]:
        asked.append(jobs)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    provider = SimpleNamespace(cancel=cancel)
    slurm: Any = SimpleNamespace(provider=provider, blocks_to_job_id={"0": 17})
    pool._executors.append(slurm)
    cleanup = pool._kernel.cleanup
    monkeypatch.setattr(pool._kernel, "cleanup", hanging.wait)
    monkeypatch.setattr(executors, "_CLEANUP_SEC", 0.1)
    try:
        pool.close()
    finally:
        hanging.set()
        cleanup()
    assert asked == [["17"]]
    assert ("may go on: 17. Cancel it" in caplog.text) is told


def test_parsl_repeats_no_step(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A step that fails is one MLflow run: retries of a configuration would begin another each."""
    from parsl.config import Config
    from parsl.executors import ThreadPoolExecutor

    config = Config(
        executors=[ThreadPoolExecutor(max_threads=1)],
        run_dir=str(tmp_path / "parsl"),
        retries=2,
        usage_tracking=0,
    )
    pool = Pool(lambda _folder: config, tmp_path / "parsl")
    pool.close()
    assert _price(config, "ValueError", tmp_path / "fit") > config.retries
    assert "retries=2 is not used: give --retries 2" in caplog.text


def _price(config: Any, error: str, folder: Path, task: dict[str, Any] | None = None) -> int:
    """Return what Parsl pays for a repeat of a step after an error."""
    step = Step("fit", "fit", "true", None)
    job = StepJob(step, folder, (), folder.with_name("stop"), Place("sqlite:///x.db"), "1", "2")
    record = {} if task is None else task
    record["args"] = (job,)
    price: int = config.retry_handler(type(error, (Exception,), {})(), record)
    return price


@pytest.mark.parametrize("error", ["ManagerLost", "WorkerLost"])
def test_a_step_that_a_lost_worker_had_not_begun_is_given_to_another(
    tmp_path: Path, error: str
) -> None:
    """It waited on a node for others to end, as in each allocation's last minutes."""
    config: Any = load_config("threads")(tmp_path / "parsl")
    with closing(Pool(lambda _folder: config, tmp_path / "parsl")):
        assert _price(config, error, tmp_path / "fit") == 1
        (tmp_path / "fit").mkdir()
        assert _price(config, error, tmp_path / "fit") == 1  # its code lies there
        (tmp_path / "fit" / "started").touch()
        assert _price(config, error, tmp_path / "fit") > config.retries
        assert config.retry_handler(ValueError(), {"args": ()}) > config.retries


@pytest.mark.parametrize("error", ["BadStateException", "TooManyJobFailuresError"])
def test_a_step_that_a_lost_executor_had_not_begun_is_given_to_the_other(
    tmp_path: Path, error: str
) -> None:
    from parsl.config import Config
    from parsl.executors import ThreadPoolExecutor

    executors: list[Any] = [ThreadPoolExecutor(label=label, max_threads=1) for label in "ab"]
    config = Config(executors=executors, run_dir=str(tmp_path / "parsl"), usage_tracking=0)
    with closing(Pool(lambda _folder: config, tmp_path / "parsl")):
        executors[0].bad_state_is_set = True
        assert _price(config, error, tmp_path / "fit", task := {"executor": "a"}) == 1
        assert task["executor"] == "b"
        executors[1].bad_state_is_set = True
        assert _price(config, error, tmp_path / "fit") > _price(config, "WorkerLost", tmp_path)


def test_a_user_without_a_name_can_run_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container that is given a number alone, Python knows none, and Parsl asks for it."""

    def know_none() -> str:
        raise KeyError("getpwuid(): uid not found: 65533")

    monkeypatch.setattr("parsl.dataflow.dflow.getuser", know_none)
    monkeypatch.setattr(executors, "getuser", know_none)
    with closing(Pool(load_config("threads"), tmp_path)) as pool:
        assert pool.fault() == ""
    assert vars(dflow)["getuser"] is know_none


def test_a_parsl_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, as a fault of the place and not of ours."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("no port is free")

    monkeypatch.setattr("parsl.DataFlowKernel", fail)
    with pytest.raises(PipelineError, match="could not be started: OSError: no port is free"):
        Pool(load_config("threads"), tmp_path)
