"""No fork of the job's while a thread of ours is inside a database's library."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from mlflow_perf.tracking import fork_guard
from mlflow_perf.tracking.fork_guard import call_inside, call_remote


def _fork(order: list[str]) -> None:
    fork_guard._before_fork()
    order.append("forked")
    fork_guard._after_fork()


def test_a_fork_waits_for_the_end_of_a_call() -> None:
    """And the next call waits for the end of the fork."""
    entered, order = threading.Event(), list[str]()

    def call() -> None:
        entered.set()
        while not fork_guard._forking:
            threading.Event().wait(0.001)
        order.append("left")

    caller = threading.Thread(target=call_inside, args=[call])
    caller.start()
    assert entered.wait(60)
    _fork(order)
    caller.join(60)
    assert order == ["left", "forked"]
    assert call_inside(lambda number: number + 1, 2) == 3
    assert not fork_guard._inside


def test_a_fork_that_began_before_the_guard_does_not_end_it() -> None:
    """Python asks after a fork also who was not there before it."""
    fork_guard._after_fork()
    order: list[str] = []
    call_inside(order.append, "called")
    _fork(order)
    assert order == ["called", "forked"]


@pytest.mark.parametrize(
    ("guarded", "most"), [(call_inside, "_MOST_SEC"), (call_remote, "_MOST_REMOTE_SEC")]
)
def test_a_fork_waits_for_the_first_moments_of_a_call_that_lasts(
    guarded: Callable[..., object], most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that another process has locked holds no job up at each of its forks."""
    monkeypatch.setattr(fork_guard, most, 0.01)
    entered, leave, order = threading.Event(), threading.Event(), list[str]()

    def call() -> None:
        entered.set()
        leave.wait(60)

    caller = threading.Thread(target=guarded, args=[call])
    caller.start()
    try:
        assert entered.wait(60)
        _fork(order)
        monkeypatch.setattr(fork_guard, most, 600.0)
        _fork(order)
    finally:
        leave.set()
        caller.join(60)
    assert order == ["forked", "forked"]
    assert not fork_guard._inside


def test_a_call_may_call_and_fork_itself() -> None:
    """MLflow asks git of its user in a child, and its calls call each other."""
    order: list[str] = []
    call_inside(lambda: call_inside(_fork, order))
    assert order == ["forked"]
    assert not fork_guard._inside


FORKS = """
import os, signal, sys, threading
import mlflow
from mlflow.entities import Metric
from mlflow_perf.tracking.client import _make_client, create_run, open_client

client = open_client(sys.argv[1])
run_id = create_run("a", tracking_uri=sys.argv[1], tags={}).info.run_id
metrics = [Metric(f"m{i}", 1.0, 1, 1) for i in range(200)]

def work():
    while True:
        client.log_batch(run_id, metrics=metrics)
        client.search_runs(["0"], max_results=5)
        for _ in range(100):
            _make_client.cache_clear()
            open_client(sys.argv[1])

threading.Thread(target=work, daemon=True).start()
for number in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        mlflow.MlflowClient(sys.argv[1]).get_run(run_id)
        client.search_runs(["0"], max_results=5)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"child {number} hung")
"""
"""Without the guard, one in six of these children hangs."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_children_of_the_job_can_ask_the_same_database(store: str) -> None:
    """A child with SQLite's lock in the state of a thread of ours would wait for it for ever.

    So would one with the lock of the module `pyspark.sql`, which MLflow tries to import for each
    client.
    """
    done = subprocess.run(
        [sys.executable, "-c", FORKS, store], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
