"""A job's time in the queue and the way it ended, from Slurm."""

from __future__ import annotations

import functools
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime

from mlflow_perf.node.children import notices_children

_JOB_ID = re.compile(r"\d+(_\d+)?")
_ID = re.compile(rf"{_JOB_ID.pattern}(\.\d+)?")  # of a job or a step
_ANSWER_SEC = 3.0
_CAUSES = {
    "OUT_OF_MEMORY": "out of memory",
    "TIMEOUT": "its time limit was over",
    "DEADLINE": "its deadline was over",
    "PREEMPTED": "it was preempted",
    "CANCELLED": "it was cancelled",
    "NODE_FAIL": "its node failed",
}


@functools.cache
def read_queue_sec(job_id: str) -> float | None:
    """Return the seconds between a running job's submission and its start; None if unknown."""
    facts = _show("job", job_id)
    # Of a job that was queued again while this step ended, the controller tells the new times.
    if facts.get("Restarts", "0") != os.environ.get("SLURM_RESTART_COUNT", "0"):
        return None
    try:
        submitted, started = (
            datetime.fromisoformat(facts[name]) for name in ("SubmitTime", "StartTime")
        )
    except (KeyError, ValueError):
        return None
    return max(0.0, (started - submitted).total_seconds())


def tag_queue() -> dict[str, str]:
    """Return the tag with the seconds that the job of this process waited; none if unknown."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}", "") for name in ("JOB_ID", "TASK_ID"))
    # The last task of an array has the array's own number, of which the controller shows all tasks.
    job_id = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")
    queue_sec = read_queue_sec(job_id) if job_id else None
    return {} if queue_sec is None else {"mlflow_perf.queue_sec": f"{queue_sec:.0f}"}


def find_slurm_cause(node: Mapping[str, object]) -> str | None:
    """Return why Slurm ended a job, or a step of it; None if it did not, or nothing can be asked.

    Args:
        node: The facts of a node, with `job_id` and perhaps `job_step`.
    """
    job_id, step = (str(node.get(name, "")) for name in ("job_id", "job_step"))
    if _JOB_ID.fullmatch(job_id) is None:
        return None
    of = f"{job_id}.{step}" if step.isdigit() else f"{job_id}.batch"
    until = time.monotonic() + 2 * _ANSWER_SEC
    states = _ask("sacct", "-nPj", of, "-o", "State").split()[:1]  # "CANCELLED by 1000"
    # While the processes are being ended, the accounting still says that they run.
    if not states or states[0] == "RUNNING":
        job = _show("job", job_id)
        states = ["TIMEOUT" if job.get("Reason") == "TimeLimit" else job.get("JobState", "")]
        # A step may be ended within a job that goes on, as by a time limit of its own.
        if job and step.isdigit() and states[0] not in _CAUSES:
            states = [_show("step", of, until=until).get("State", "")]
    (state,) = states
    return f"{_CAUSES[state]}: Slurm says {state}" if state in _CAUSES else None


def explain_sigterm(cause: str | None, node: Mapping[str, object]) -> str | None:
    """Return Slurm's reason for a SIGTERM; any other cause is returned unchanged.

    Args:
        cause: Why a block or a command ended.
        node: As for `find_slurm_cause`.
    """
    by_slurm = find_slurm_cause(node) if (cause or "").endswith("SIGTERM") else None
    return by_slurm or cause


def _show(kind: str, name: str, *, until: float = math.inf) -> dict[str, str]:
    """Return what the controller says of a job or a step; nothing where it cannot be asked.

    Args:
        kind: `job` or `step`.
        name: Its id.
        until: When to give up at the latest, on the monotonic clock.
    """
    if _ID.fullmatch(name) is None:
        return {}
    words = _ask("scontrol", "-o", "show", kind, name, until=until).split()
    return {name: value for name, found, value in (w.partition("=") for w in words) if found}


def _ask(*argv: str, until: float = math.inf) -> str:
    """Return the output of a command of Slurm; empty if it is missing or does not answer."""
    program = shutil.which(argv[0])
    if program is None or notices_children():
        return ""
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=min(_ANSWER_SEC, until - time.monotonic()),
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
