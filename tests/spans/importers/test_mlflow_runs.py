"""Spans from MLflow's runs, and spans logged to a run, on a real store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.errors import RunNotFoundError

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """A store with a parent run, a child with a metric's history, and a trace of two spans."""
    import mlflow

    folder = tmp_path_factory.mktemp("store")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = mlflow.create_experiment("spans", artifact_location=str(folder / "artifacts"))
    yield f"sqlite:///{folder / 'mlflow.db'}", _logged(experiment, folder), folder
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type] # back to the default


def _logged(experiment: str, folder: Path) -> str:
    """Log the runs to the tracking store, and return the parent's id."""
    import mlflow

    @mlflow.trace
    def outer() -> int:
        return inner()

    @mlflow.trace
    def inner() -> int:
        return 1

    with mlflow.start_run(experiment_id=experiment, run_name="flow") as parent:  # noqa: SIM117 - nested runs
        with mlflow.start_run(experiment_id=experiment, run_name="step", nested=True) as step_run:
            for step in range(3):
                mlflow.log_metric("loss", 1 / (step + 1), step=step)
            outer()
            node = {"started": 1795000000.0, "duration_sec": 1.0, "component": "step"}
            node["run_id"] = step_run.info.run_id
            document = {"schema": "mlflow-perf/1", "nodes": {"0": node}}
            (folder / "node-0.json").write_text(json.dumps(document))
            mlflow.log_artifact(str(folder / "node-0.json"), "perf")
    mlflow.flush_trace_async_logging()
    return str(parent.info.run_id)


COUNTS = {
    "mlflow.run": 2, "mlflow.trace": 1, "mlflow.span.inner": 1, "mlflow.span.outer": 1,
    "mlflow_perf.component": 1, "mlflow_perf.node": 1,
}  # fmt: skip


def _counts(db: Path) -> dict[str, int]:
    return {row["type"]: row["spans"] for row in spans.types(db)}


@pytest.fixture
def parent(store: tuple[str, str, Path]) -> str:
    """The parent's id, its store being MLflow's."""
    import mlflow

    mlflow.set_tracking_uri(store[0])
    return store[1]


def test_a_run_brings_its_children_metrics_traces_and_document(parent: str, tmp_path: Path) -> None:
    """One URI gives the whole tree; the run and what we recorded of it are bound."""
    spans.import_sources(f"runs:/{parent}", tmp_path / "db")
    assert _counts(tmp_path / "db") == COUNTS
    losses = spans.sql(tmp_path / "db", "SELECT count(*) AS n FROM metric WHERE name = 'loss'")
    assert losses[0]["n"] >= 1
    relations = {
        (r["from"], r["to"], r["kind"]) for r in spans.type_graph(tmp_path / "db")["relations"]
    }
    assert {
        ("mlflow.run", "mlflow.run", "subspan"),
        ("mlflow.run", "mlflow.trace", "subspan"),
        ("mlflow.trace", "mlflow.span.outer", "subspan"),
        ("mlflow.span.outer", "mlflow.span.inner", "subspan"),
        ("mlflow.run", "mlflow_perf.component", "facet"),
    } <= relations


def test_the_same_comes_over_http_and_from_runs_in_a_ring(server: str, tmp_path: Path) -> None:
    """A server has bounds that a store has not; a run that names its child as parent ends."""
    import mlflow

    client = mlflow.MlflowClient()
    experiment = client.create_experiment(f"spans over HTTP {tmp_path}")
    parent = _logged(experiment, tmp_path)
    (child,) = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'")
    client.set_tag(parent, "mlflow.parentRunId", child.info.run_id)
    spans.import_sources(f"runs:/{parent}", tmp_path / "db")
    assert _counts(tmp_path / "db") == COUNTS


def test_a_run_and_its_store_tell_the_same(
    parent: str, store: tuple[str, str, Path], tmp_path: Path
) -> None:
    """Imported again, or from the store's own file, a run holds nothing new."""
    db = tmp_path / "db"
    spans.import_sources(f"runs:/{parent}", db)
    for source in (f"runs:/{parent}", store[2] / "mlflow.db"):
        (again,) = spans.import_sources(source, db)
        assert (again.spans, again.events) == (0, 0)


def test_an_unknown_run_is_one_line(parent: str, tmp_path: Path) -> None:
    """A wrong id is an error that names it."""
    with pytest.raises(RunNotFoundError, match="does not exist") as caught:
        spans.import_sources(f"runs:/{'0' * 32}", tmp_path / "db")
    assert "\n" not in str(caught.value)


def test_figures_pictures_and_database_are_logged(
    parent: str, make: Any, tmp_path: Path, spans_of: Callable[..., Path]
) -> None:
    """The headline times become metrics of the run, the rest artifacts; its status stays."""
    from mlflow import MlflowClient

    db = spans_of(make.simple_monitoring(tmp_path / "m.db"))
    paths = spans.log_to_run(parent, db)
    client = MlflowClient()
    run = client.get_run(parent)
    assert run.data.metrics["spans/count"] == 3
    assert run.data.metrics["spans/duration_p95_sec"] == pytest.approx(2.0)
    assert run.data.metrics["spans/step_04_running_ended_mean_sec"] == pytest.approx(1.0)
    assert run.info.status == "FINISHED"
    assert {f.path for f in client.list_artifacts(parent, "spans")} == set(paths)
    copy = client.download_artifacts(parent, "spans/spans.sqlite3", str(tmp_path))
    assert spans.types(copy) == spans.types(db)


def test_logging_to_no_run(parent: str, make: Any, tmp_path: Path, spans_of: Any) -> None:
    """A run that is not there is said not to be."""
    db = spans_of(make.simple_monitoring(tmp_path / "m.db"))
    with pytest.raises(RunNotFoundError):
        spans.log_to_run("0" * 32, db)
