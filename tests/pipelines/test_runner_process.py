"""A step's worker sees that the runner of its pipeline is gone, and takes no other for it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from mlflow_perf.pipelines import runner_process
from mlflow_perf.pipelines.runner_process import RunnerProcess, RunnerWatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="others tell of no namespace")


@pytest.fixture
def other() -> RunnerProcess:
    """A process that has ended, of which nobody has asked the exit code."""
    process = subprocess.Popen(["sleep", "600"])
    created = psutil.Process(process.pid).create_time()
    runner = replace(RunnerProcess.current(), pid=process.pid, created=created)
    assert not runner.is_gone()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert runner.is_gone()
    process.wait()
    return runner


def test_one_that_has_ended_is_gone(other: RunnerProcess) -> None:
    """Here only: in another container its number is another's."""
    assert other.is_gone()
    assert not replace(other, place="elsewhere").is_gone()
    assert not replace(other, place="").is_gone()


def test_one_that_lives_is_not_gone() -> None:
    """A clock that is set tells another time of its start; another process began much later."""
    runner = RunnerProcess.current()
    assert not runner.is_gone()
    assert not replace(runner, created=runner.created - 5).is_gone()
    assert replace(runner, created=runner.created - 500).is_gone()


def test_a_watch_looks_now_and_then(other: RunnerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for a runner that runs the step itself, whose guard ends it."""
    watch = RunnerWatch(other)
    assert [watch.is_gone(), watch.is_gone()] == [True, False]
    monkeypatch.setattr(runner_process, "_LOOK_SEC", 0.0)
    watch = RunnerWatch(other)
    assert [watch.is_gone(), watch.is_gone()] == [True, True]
    assert not RunnerWatch(replace(other, pid=os.getpid())).is_gone()
    assert not RunnerWatch(None).is_gone()
