"""Finds the part of a run, and the function, in which the time of a finding was spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_perf.analysis.span import Span
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.callers import CodePlace, find_main_caller
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.profile import Profile, list_functions

_LEAST_SHARE = 0.05
_COMPUTES = ("serial", "saturated", "contended", "oversubscribed", "balanced")
_IN_CODE = (*_COMPUTES, "contended_gpu", "waiting", "disk", "network", "idle", "gpu", "input")


@dataclass(frozen=True)
class Part:
    """The part of a run in which a finding's time was spent.

    Attributes:
        bounds: Begin and end, in seconds from the run's start.
        used: CPUs that the job kept busy in it, on average.
        name: Its begin and end as text.
    """

    bounds: tuple[float, float]
    used: float
    name: str


def find_part(
    kind: str, spans: Sequence[Span], shares: Sequence[Mapping[str, float]]
) -> Part | None:
    """Return the one part of the run in which a kind took most of its time; None without one."""
    if kind not in shares[0] or len(spans) < 4:
        return None
    held = [i for i, share in enumerate(shares) if share[kind] >= 0.5]
    if not held:
        return None
    inside = spans[held[0] : held[-1] + 1]
    begin, end = inside[0].start_sec, inside[-1].start_sec + inside[-1].seconds
    held_sec = sum(spans[i].seconds for i in held)
    whole = spans[-1].start_sec + spans[-1].seconds
    if end - begin > 0.8 * whole or held_sec < 0.8 * (end - begin) or held_sec < 0.1 * whole:
        return None
    taken = [share[kind] * span.seconds for share, span in zip(shares, spans, strict=True)]
    if sum(taken[held[0] : held[-1] + 1]) <= 0.5 * sum(taken):
        return None
    start = "the start" if begin <= 0.05 * whole else format_duration(begin)
    until = "the end" if end >= 0.95 * whole else format_duration(end)
    used = sum(span.used * span.seconds for span in inside) / sum(span.seconds for span in inside)
    return Part((begin, end), used, f"{start} to {until}")


def find_function(
    kind: str, document: NodeDocument, part: tuple[float, float] | None = None
) -> CodePlace:
    """Return the function that a profile in the document says took most time of the kind.

    It is a function of the job's own, with the libraries that it called. Computing counts in all
    threads and processes, waiting in the main thread, for which everything else waits. The wait for
    a CPU belongs to the functions that compute. No function is named whose share may as well be
    nothing, by the number of samples.

    Args:
        kind: The kind of finding.
        document: The node.
        part: Begin and end of a part of the run, in seconds from its start; default: all of it.
    """
    profile = document.extra.get("profile")
    if kind not in _IN_CODE or not isinstance(profile, dict):
        return CodePlace()
    rows = list_functions(document, "own")
    if part is not None:
        tree = Profile.from_dict(profile.get("flame"))
        rows = [] if tree is None else tree.list_own(*part)
    computes = kind in _COMPUTES
    delay = read_number(document.summary.get("job_run_delay_pct")) or 0.0
    ready_per_cpu = 1.0 / max(0.01, 1.0 - delay / 100.0)
    found: dict[str, float] = {}
    errors: dict[str, float] = {}
    longest: dict[str, tuple[float, Mapping[str, Any]]] = {}
    for row in rows:
        times = (read_number(row.get(key)) or 0.0 for key in ("main_s", "wall_s", "cpu_s"))
        main, wall, cpu = times
        # Native threads may compute while this one waits for another reason.
        ran = max(0.0, cpu - (read_number(row.get("native_s")) or 0.0))
        ready = ready_per_cpu * ran * (main / wall if wall else 0.0)
        seconds = cpu if computes else max(0.0, main - ready)
        name = str(row.get("function"))
        found[name] = found.get(name, 0.0) + seconds
        longest[name] = max(longest.get(name, (0.0, row)), (seconds, row), key=lambda one: one[0])
        error = read_number(row.get("cpu_error_s" if computes else "main_error_s")) or 0.0
        errors[name] = max(errors.get(name, 0.0), error)
    best = max(found, key=lambda name: found[name], default=None)
    # A function that ended as a part of the run began is not the one of that part.
    length_sec = part[1] - part[0] if part is not None else 0.0
    least = _LEAST_SHARE * max(length_sec, sum(found.values()))
    if best is None or found[best] <= max(least, errors[best]):
        return CodePlace()
    return CodePlace(best, find_main_caller(longest[best][1], "cpu" if computes else "main"))
