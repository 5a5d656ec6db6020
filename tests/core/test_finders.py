"""Finders of ours come and go beside imports of the job's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tracking.own_calls import run_alone

import mlflow_perf
from mlflow_perf.core import import_watch
from mlflow_perf.core.finders import remove_finder
from mlflow_perf.core.import_watch import ImportWatch
from mlflow_perf.tracking.import_effects import changed_modules
from mlflow_perf.tracking.job_scripts import no_scripts


@pytest.fixture(autouse=True)
def _same_finders() -> Iterator[None]:
    """Check that the job has its own finders afterwards."""
    before = sys.meta_path.copy()
    own = import_watch._WatchedSpec.watch  # that of this process, which knows what is imported
    yield
    import_watch._WatchedSpec.watch = own
    assert sys.meta_path == before


@pytest.mark.parametrize("which", ["watch", "effects", "scripts"])
def test_an_import_that_goes_on_asks_every_finder(which: str) -> None:
    """Where one was removed from the list, the import did not find a module that is there."""
    before = sys.meta_path.copy()
    watch = ImportWatch(lambda: False, lambda: 0)
    if which == "watch":
        watch.start()
        asked = iter(sys.meta_path)
        next(asked)
        watch.stop()
    else:
        with changed_modules() if which == "effects" else no_scripts(lambda: False):
            asked = iter(sys.meta_path)
            next(asked)
    assert list(asked) == before


def test_what_the_job_adds_meanwhile_stays() -> None:
    """Before ours or behind them; and what is gone already is not missed."""
    before = sys.meta_path
    ours, theirs = object(), object()
    sys.meta_path.insert(0, ours)  # type: ignore[arg-type]
    sys.meta_path.insert(0, theirs)  # type: ignore[arg-type]
    remove_finder(ours)
    assert sys.meta_path[0] is theirs
    remove_finder(ours)
    remove_finder(theirs)
    before[:] = sys.meta_path


def test_nobody_removes_one_otherwise() -> None:
    """Not from the list itself."""
    files = Path(mlflow_perf.__file__).parent.rglob("*.py")
    assert not [one for one in files if "meta_path.remove" in one.read_text(encoding="utf-8")]


_SCRIPT = """
import importlib.util, sys, threading, time
import mlflow_perf
from mlflow_perf.tracking.mlflow_call import MlflowCall
missed, over = [], threading.Event()
def look():
    while not over.is_set():
        if importlib.util.find_spec("this") is None:
            missed.append(1)
threads = [threading.Thread(target=look) for _ in range(2)]
for one in threads:
    one.start()
for _ in range(200):
    MlflowCall(lambda: None, name="test").result(60)
over.set()
for one in threads:
    one.join()
print(len(missed))
"""


@pytest.mark.e2e
def test_a_thread_that_imports_finds_all_that_is_there() -> None:
    """While calls of MLflow begin and end."""
    assert run_alone(_SCRIPT) == (0, "0\n", "")
