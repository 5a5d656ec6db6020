"""Calls of MLflow beside each other, for one caller."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from mlflow_perf.core.workspaces import read_workspace, working_in
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.pools import map_beside

LEAVES = """\
import threading
import mlflow
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.pools import map_beside
begun = threading.Event()
def hang(_):
    begun.set()
    threading.Event().wait()
MlflowCall(lambda: list(map_beside(hang, range(9), threads=2)), name="all")
assert begun.wait(60)
"""


def test_each_item_has_its_answer_in_order() -> None:
    """However many calls there are, no more go on at a time than are asked for."""
    lock, now, most = threading.Lock(), 0, 0
    together = threading.Barrier(3)

    def double(number: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        if number < together.parties:
            together.wait(60)
        with lock:
            now -= 1
        return 2 * number

    assert list(map_beside(double, range(7), threads=3)) == [0, 2, 4, 6, 8, 10, 12]
    assert most == 3
    assert list(map_beside(double, [], threads=3)) == []


def test_an_error_is_raised_at_its_turn() -> None:
    """What came before it is there."""
    answers = map_beside(lambda divisor: 6 // divisor, [1, 2, 0, 3], threads=2)
    assert [next(answers), next(answers)] == [6, 3]
    with pytest.raises(ZeroDivisionError):
        next(answers)


def test_they_work_in_the_workspace_of_the_caller() -> None:
    """MLflow itself would ask the default one for the steps that `recover` looks for."""
    pytest.importorskip("mlflow.utils.workspace_context")
    with working_in("there"):
        assert set(map_beside(lambda _: read_workspace(), range(8), threads=2)) == {"there"}
    assert read_workspace() == ""


def test_what_is_wrong_with_one_is_wrong_with_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also two calls deep, and no longer once it is done."""
    ill, release = threading.Event(), threading.Event()

    def ask(_: int) -> None:
        threading.current_thread().fault = "HTTP 500"  # type: ignore[attr-defined]
        ill.set()
        assert release.wait(60)

    def ask_several(_: int) -> None:
        list(map_beside(ask, [1], threads=1))

    monkeypatch.setattr("mlflow_perf.tracking.mlflow_call._LOOK_SEC", 0.01)
    caller = MlflowCall(lambda: list(map_beside(ask_several, [1, 2], threads=1)), name="all")
    assert ill.wait(60)
    while caller.find_fault() != "HTTP 500":
        assert not caller.done_within(0.01)
    release.set()
    assert caller.result(60) == [None, None]
    assert caller.find_fault() == ""


def test_the_end_of_the_process_does_not_wait_for_them() -> None:
    """As it would for a pool of Python's, as long as MLflow tries again."""
    assert subprocess.run([sys.executable, "-c", LEAVES], timeout=100, check=False).returncode == 0
