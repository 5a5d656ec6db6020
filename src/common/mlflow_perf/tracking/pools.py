"""Pools of threads that ask MLflow for their caller."""

from __future__ import annotations

from concurrent import futures

from mlflow_perf.core.workspaces import read_workspace, work_in


def open_pool(threads: int) -> futures.ThreadPoolExecutor:
    """Return a pool whose threads work in the workspace of the caller.

    Args:
        threads: Their number.
    """
    return futures.ThreadPoolExecutor(threads, initializer=work_in, initargs=(read_workspace(),))
