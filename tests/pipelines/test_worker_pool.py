"""Parsl's pool of workers, in which steps wait for nodes without stopping the others."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.pipelines.worker_pool import start_waiting

pytest.importorskip("parsl")


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parsl's scheduler of two nodes, as PBS names them, with our way to start what waits."""
    from parsl.executors.high_throughput.mpi_resource_management import MPITaskScheduler

    (tmp_path / "nodes").write_text("a\nb\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    for name in ("SLURM_JOB_NODELIST", "COBALT_NODEFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(MPITaskScheduler, "_schedule_backlog_tasks", start_waiting)
    return MPITaskScheduler(multiprocessing.Queue(), multiprocessing.Queue())


def test_what_does_not_fit_waits_for_the_next_result(scheduler: Any) -> None:
    """Each result frees its nodes; Parsl's own way ends in a RecursionError at the first one."""
    for number, nodes in enumerate((1, 1, 2, 1)):
        spec = {"num_nodes": nodes}
        scheduler.put_task({"task_id": number, "context": {"resource_spec": spec}})

    def end(number: int) -> None:
        scheduler.pending_result_q.put(pickle.dumps({"type": "result", "task_id": number}))
        assert pickle.loads(scheduler.get_result(timeout=60))["task_id"] == number

    def start() -> int:
        number: int = scheduler.pending_task_q.get(timeout=60)["task_id"]
        return number

    assert [start(), start()] == [0, 1]
    end(0)
    assert start() == 3
    end(1)
    end(3)
    assert start() == 2
    end(2)
    assert sorted(scheduler.nodes_q.get(timeout=60) for _ in range(2)) == ["a", "b"]
