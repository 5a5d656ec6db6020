"""What Slurm is asked about a job, with its commands stood in for."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_perf.node import slurm_job
from mlflow_perf.node.slurm_job import explain_sigterm, find_slurm_cause, read_queue_sec, tag_queue

Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Return what puts a command on the path that prints a text."""
    monkeypatch.setenv("PATH", str(tmp_path))
    read_queue_sec.cache_clear()

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_the_time_in_the_queue(program: Program) -> None:
    """It is between submission and start; without Slurm, or a number, there is none."""
    assert read_queue_sec("7") is None
    read_queue_sec.cache_clear()
    program(
        "scontrol",
        "JobId=7 JobState=RUNNING SubmitTime=2026-11-22T01:00:00 StartTime=2026-11-22T01:02:30",
    )
    assert read_queue_sec("7") == 150.0
    assert read_queue_sec("7; rm -rf /") is None


def test_the_last_task_of_an_array_asks_for_itself(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its job has the number of the whole array, of which the controller shows all tasks."""
    times = "SubmitTime=2026-11-22T01:00:00 StartTime=2026-11-22T01:00:"
    program("scontrol", f"JobId=8 {times}00\nJobId=7 {times}42")
    said = (tmp_path / "scontrol").read_text()
    (tmp_path / "scontrol").write_text(f'{said}[ "$4" = 7_3 ] && echo JobId=7 {times}42\n')
    for name, value in (("JOB_ID", "7"), ("ARRAY_JOB_ID", "7"), ("ARRAY_TASK_ID", "3")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert tag_queue() == {"mlflow_perf.queue_sec": "42"}


@pytest.mark.parametrize(("own", "queue_sec"), [(None, None), ("1", 150.0)])
def test_the_times_of_another_attempt_are_not_told(
    program: Program, monkeypatch: pytest.MonkeyPatch, own: str | None, queue_sec: float | None
) -> None:
    """A job that was queued again has new times, also for the steps that ended for that."""
    times = "SubmitTime=2026-11-22T01:00:00 StartTime=2026-11-22T01:02:30"
    program("scontrol", f"JobId=7 JobState=PENDING Restarts=1 {times}")
    if own is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", own)
    assert read_queue_sec("7") == queue_sec


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("OUT_OF_MEMORY", "out of memory: Slurm says OUT_OF_MEMORY"),
        ("CANCELLED by 1000", "it was cancelled: Slurm says CANCELLED"),
        ("TIMEOUT", "its time limit was over: Slurm says TIMEOUT"),
        ("COMPLETED", None),
        ("", None),
    ],
)
def test_why_slurm_ended_a_job(program: Program, said: str, cause: str | None) -> None:
    """The accounting says so; without accounting, the controller for some minutes."""
    node = {"job_id": "7", "job_step": "0"}
    assert find_slurm_cause({}) is find_slurm_cause(node) is None
    program("scontrol", f"JobState={said}")
    assert find_slurm_cause(node) == cause
    program("sacct", said)
    program("scontrol", "JobState=NODE_FAIL" if said else "")
    assert find_slurm_cause(node) == cause


def test_a_time_limit_is_known_while_the_job_is_being_ended(program: Program) -> None:
    """The controller gives the reason before the accounting has the end of the step."""
    program("sacct", "RUNNING")
    program("scontrol", "JobId=7 JobState=COMPLETING Reason=TimeLimit")
    cause = "its time limit was over: Slurm says TIMEOUT"
    node = {"job_id": "7", "job_step": "0"}
    assert find_slurm_cause(node) == explain_sigterm("signal SIGTERM", node) == cause
    assert explain_sigterm("exit code 3", node) == "exit code 3"


def test_a_steps_own_end_is_known_while_its_job_goes_on(program: Program) -> None:
    """The controller says of the step that its time limit was over, and of the job that it runs."""
    program("scontrol", "JobId=7 JobState=RUNNING Reason=None StepId=7.0 State=TIMEOUT")
    cause = "its time limit was over: Slurm says TIMEOUT"
    node = {"job_id": "7", "job_step": "0"}
    assert find_slurm_cause(node) == explain_sigterm("signal SIGTERM", node) == cause
    program("sacct", "RUNNING")
    assert find_slurm_cause(node) == cause
    assert find_slurm_cause({"job_id": "7"}) is None


def test_asking_for_a_step_takes_no_more_time_than_before(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets what accounting and controller have left of the time for two answers."""
    monkeypatch.setattr(slurm_job, "_ANSWER_SEC", 0.5)
    program("sacct", "RUNNING")
    program("scontrol", "JobState=RUNNING")
    for name in ("sacct", "scontrol"):
        text = (tmp_path / name).read_text().replace("\n", "\n/bin/sleep 0.4\n", 1)
        (tmp_path / name).write_text(text)
    began = time.monotonic()
    assert find_slurm_cause({"job_id": "7", "job_step": "0"}) is None
    assert time.monotonic() - began < 1.15


def test_a_job_that_listens_to_its_children_hears_nothing(program: Program) -> None:
    """Its handler of SIGCHLD is not called for a command of ours."""
    program("sacct", "TIMEOUT")
    heard: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda number, _: heard.append(number))
    try:
        assert find_slurm_cause({"job_id": "7"}) is None
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert heard == []
