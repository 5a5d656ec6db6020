"""How far the threads of a job take turns on one CPU, as Python's do under its lock."""

from __future__ import annotations

from mlflow_perf.analysis.usage import Usage, ramp


def average_switches(usage: Usage) -> float:
    """Return how often per second threads of the job gave up their CPU, over the whole block."""
    seconds = usage["duration_sec"]
    return usage["job_voluntary_switches"] / seconds if seconds > 0 else 0.0


def find_several(apart: float | None, *, of: float, processes: float) -> float:
    """Return how far several processes did the computing; older documents tell their number alone.

    Args:
        apart: What others than the busiest process did; a shell that waits for a program does none.
        of: What all did.
        processes: Processes of the job.
    """
    return ramp(processes, 1, 2) if apart is None else ramp(apart, 0.1 * of, 0.3 * of)


def find_turns(
    used: float, threads: float, switches: float, beside: float, several: float
) -> float:
    """Return how far threads take turns on one CPU.

    Args:
        used: CPUs that the job kept busy.
        threads: Threads of the job, idle ones included.
        switches: How often per second they give up their CPU.
        beside: The share of the computing that others than each process's busiest thread did; 1.0
            if unknown.
        several: How far several processes, each with a lock of its own, did the computing.
    """
    is_one = (1.0 - ramp(used, 1.1, 1.4)) * ramp(beside, 0.1, 0.3) * (1.0 - several)
    return is_one * ramp(switches, 50, 150) if threads >= 3 else 0.0
