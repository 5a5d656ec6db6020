"""Parsl's pool of workers, in which steps wait for nodes without stopping the others.

Parsl's own scheduler of nodes calls itself for ever as soon as what waits needs more nodes than are
free: it loses the result that has just come, and starts no more. On the first node of an
allocation: `python3 -m mlflow_perf.pipelines.worker_pool ARG …`, with the arguments of Parsl's.
"""

from __future__ import annotations

import queue
import runpy
from typing import Any

_POOL = "parsl.executors.high_throughput.process_worker_pool"


def start_waiting(scheduler: Any) -> None:
    """Start those tasks of a `MPITaskScheduler` that wait for nodes and have them now."""
    waiting = []
    try:
        while True:
            waiting.append(scheduler._backlog_queue.get(block=False))  # noqa: SLF001 - Parsl's
    except queue.Empty:
        pass
    for one in waiting:
        scheduler.put_task(one.task)  # it waits again where too few nodes are free


def main() -> None:
    """Run Parsl's pool of workers."""
    from parsl.executors.high_throughput.mpi_resource_management import MPITaskScheduler

    scheduler: Any = MPITaskScheduler
    scheduler._schedule_backlog_tasks = start_waiting  # noqa: SLF001
    runpy.run_module(_POOL, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
