"""Live curves: batched, in order, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

import mlflow_perf
from mlflow_perf.publish.live_curves import LiveCurves
from mlflow_perf.tracking.run_handle import RunHandle

RUN = RunHandle(run_id="run")


def test_reports_become_mlflows_system_metrics() -> None:
    """Each report is a step; known columns carry MLflow's own keys."""
    sent = []
    curves = LiveCurves(RUN, send=lambda run, metrics: sent.append((run, metrics)))
    curves({"timestamp": 10.0, "cpu_pct_per_cpu_avg": 5.0, "odd": 1.0})
    curves({"timestamp": 11.0, "cpu_pct_per_cpu_avg": 6.0})
    curves.flush()
    ((run, metrics),) = sent
    assert run == "run"
    assert [(m.key, m.value, m.timestamp, m.step) for m in metrics] == [
        ("system/cpu_utilization_percentage", 5.0, 10_000, 0),
        ("system/cpu_utilization_percentage", 6.0, 11_000, 1),
    ]


def test_rejected_curves_are_sent_later_in_order() -> None:
    """A failed batch waits; nothing is lost or doubled."""
    sent: list[int] = []
    answers = iter([OSError("away"), None])

    def send(run: str, metrics: list[Metric]) -> None:
        error = next(answers)
        if error:
            raise error
        sent.extend(m.step for m in metrics)

    curves = LiveCurves(RUN, send=send)
    for n in range(3):
        curves({"mem_percent": float(n)})
    with pytest.raises(OSError, match="away"):
        curves.flush()
    curves({"mem_percent": 3.0})
    curves.flush()
    assert sent == [0, 1, 2, 3]


def test_without_a_run_the_curves_wait_and_stay_bounded() -> None:
    """While there is no run nothing is sent, and old rows make room."""
    curves = LiveCurves(RunHandle(), node="1", send=lambda *_: pytest.fail("sent"))
    for n in range(5000):
        curves({"mem_percent": float(n)})
    curves.flush()
    assert len(curves._waiting) == 2000


def test_live_curves_are_in_the_run(store: str) -> None:
    """report(live=True) leaves MLflow's own system metrics in the run, beside ours."""
    with mlflow_perf.report("train", live=True, interval=0.05) as perf:
        until = perf.run_id
    history = MlflowClient().get_metric_history(str(until), "system/system_memory_usage_percentage")
    assert len(history) >= 2


def test_while_a_server_is_away_the_oldest_rows_make_room() -> None:
    """What came while a send failed stays: it is the start of the curve that is given up."""
    away = True

    def send(_run: str, metrics: list[Metric]) -> None:
        if away:
            for n in range(2000, 2050):
                curves({"mem_percent": float(n)})
            raise OSError("away")
        sent.extend(m.step for m in metrics)

    sent: list[int] = []
    curves = LiveCurves(RUN, send=send)
    for n in range(2000):
        curves({"mem_percent": float(n)})
    with pytest.raises(OSError, match="away"):
        curves.flush()
    away = False
    curves.flush()
    assert sent == list(range(50, 2050))


def test_a_live_run_names_its_component_at_once(tmp_path: Path) -> None:
    """The first batch tags the run with its component; the tag of an earlier one stays."""
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    for tags, component in (({}, "fit"), ({"mlflow_perf.component": "first"}, "first")):
        run_id = client.create_run("0", tags=tags).info.run_id
        run = RunHandle(run_id=run_id, tracking_uri=client.tracking_uri)
        curves = LiveCurves(run, component="fit")
        curves({"job_cpu_cores": 1.5})
        curves.flush()
        data = client.get_run(run_id).data
        assert data.metrics == {"system/job_cpu_cores": 1.5}
        assert data.tags["mlflow_perf.component"] == component
