"""Lists what made a run slower or faster than another, by the seconds that each cause cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlflow_perf.analysis.time_shares import divide_activity, split_time, summarise_time
from mlflow_perf.analysis.usage import Usage
from mlflow_perf.core.format import format_pair
from mlflow_perf.tracking.perf_run import PerfRun

_MOST_CAUSES = 3
_SAME_RATIO = 1.05
_PART_OF_CHANGE, _PART_OF_TIME = 0.2, 0.1
_OTHERS_SHARE = 0.2

_TIMES = {
    "waited_cpu_sec": "waiting for CPUs",
    "throttled_sec": "held back by the CPU quota",
    "input_sec": "waiting for input",
    "disk_sec": "waiting for disks",
    "memory_sec": "waiting for memory",
    "gpu_sec": "time on the GPU",
    "waited_gpu_sec": "waiting for GPUs that others used",
    "waited_sec": "waiting for neither CPUs nor disks",
}
"""Seconds of a job's time → their name in the sentence; those for input are among the others."""


@dataclass(frozen=True)
class _Amount:
    """A figure that is no time, and may be the reason of one.

    Attributes:
        key: The metric.
        name: Its name in the sentence.
        least: The least change in MB that is worth naming.
        ratio: The least ratio of the two values that is.
    """

    key: str
    name: str
    least: float
    ratio: float


_AMOUNTS = (
    _Amount("job_io_read_mb", "read from disks", 100.0, 1.5),
    _Amount("job_io_write_mb", "written to disks", 100.0, 1.5),
    _Amount("job_max_mem_mb", "memory", 64.0, 1.25),
)


def list_causes(base: Sequence[PerfRun], new: Sequence[PerfRun]) -> Iterator[str]:
    """Yield what cost most of the change in seconds, then amounts that changed much.

    Of several repeats the figures are medians, and of each run the mean over its nodes.

    Args:
        base: The repeats of the run to compare with.
        new: Those of the other run.
    """
    old, fresh = _find_medians(base), _find_medians(new)
    before, after = old.get("duration_sec", 0.0), fresh.get("duration_sec", 0.0)
    is_same = max(before, after) < _SAME_RATIO * min(before, after)
    found = []
    for cost, text in _list_costs(old, fresh):
        gain = abs(cost) if is_same else cost if after > before else -cost
        of_change = not is_same and gain >= _PART_OF_CHANGE * abs(after - before) > 0
        if of_change or abs(gain) >= _PART_OF_TIME * max(before, after) > 0:
            found.append((gain, text))
    texts = [text for _, text in sorted(found, key=lambda one: -one[0])]
    for amount in _AMOUNTS:
        a, b = old.get(amount.key), fresh.get(amount.key)
        if a is None or b is None or abs(b - a) < amount.least:
            continue
        if max(a, b) >= amount.ratio * min(a, b):
            texts.append(f"{amount.name} {format_pair(a, b, 'MB')}")
    yield from texts[:_MOST_CAUSES]


def _list_costs(
    old: Mapping[str, float], fresh: Mapping[str, float]
) -> Iterator[tuple[float, str]]:
    """Yield how many seconds more each part of the time took than before, with its name."""
    for key, name in _TIMES.items():
        if key not in old or key not in fresh:
            continue
        cost = fresh[key] - old[key]
        # Shares of seconds are not exact to a thousandth.
        digits = 2 if max(old[key], fresh[key]) >= 1 else 4
        text = f"{name} {format_pair(round(old[key], digits), round(fresh[key], digits), 's')}"
        others_held = _OTHERS_SHARE * fresh.get("cpu_limit_cores", 0.0)
        is_crowded = fresh.get("others_cpu_avg_cores", 0.0) >= others_held > 0
        if key == "waited_cpu_sec" and cost > 0 and is_crowded:
            text += ", others on the node"
        yield cost, text
    yield from _list_costs_of_computing(old, fresh)


def _list_costs_of_computing(
    old: Mapping[str, float], fresh: Mapping[str, float]
) -> Iterator[tuple[float, str]]:
    """Yield how many seconds more work took than before, and work on fewer CPUs at a time."""
    if "cpu_sec" not in old or "cpu_sec" not in fresh:
        return
    work = old["cpu_sec"], fresh["cpu_sec"]
    paces = [side["computed"] / side["cpu_sec"] for side in (old, fresh) if side["cpu_sec"] > 0]
    if not paces:
        return
    cost = (work[1] - work[0]) * statistics.mean(paces)
    where = " per node" if max(old["nodes"], fresh["nodes"]) > 1 else ""
    yield cost, f"CPU time{where} {format_pair(work[0] / 3600, work[1] / 3600, 'CPU h')}"
    used = old["job_cpu_avg_cores"], fresh["job_cpu_avg_cores"]
    if max(used) >= _SAME_RATIO * min(used):
        cost = (paces[-1] - paces[0]) * statistics.mean(work)
        yield cost, f"CPUs used{where} {format_pair(*used, '')}"


def _find_medians(runs: Sequence[PerfRun]) -> dict[str, float]:
    """Return the median of each figure over repeats, of each run the mean over its nodes."""
    found = [_average_nodes(run) for run in runs]
    keys = dict.fromkeys(key for figures in found for key in figures)
    return {
        key: statistics.median(figures[key] for figures in found if key in figures) for key in keys
    }


def _average_nodes(run: PerfRun) -> dict[str, float]:
    """Return the mean of each figure over the nodes of a run."""
    documents = run.document.nodes if run.document is not None else {}
    values: dict[str, list[float]] = {}
    for index, summary in run.nodes.items():
        facts = documents[index].node if index in documents else {}
        for key, value in {**summary, **_divide_time(Usage(summary, facts), summary)}.items():
            values.setdefault(key, []).append(value)
    means = {key: sum(of_nodes) / len(of_nodes) for key, of_nodes in values.items()}
    return {**means, "nodes": len(run.nodes)}


def _divide_time(usage: Usage, summary: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a node's time by what the job did, from its summary alone.

    A run whose curves were not read is divided like one whose curves were.
    """
    span = summarise_time(usage)
    seconds, shares = span.seconds, split_time(span)
    loops = [key.removesuffix("/input_pct") for key in summary if key.endswith("/input_pct")]
    found = {}
    if loops:
        found["input_sec"] = min(seconds, max(_measure_input(loop, summary) for loop in loops))
    if span.has_gpu:
        found["gpu_sec"] = shares["gpu"] * seconds
        found["waited_gpu_sec"] = shares["contended_gpu"] * seconds
    if span.own:
        computing, starved, throttled = divide_activity(span)
        idle = max(0.0, 1.0 - computing - starved - throttled)
        found |= {
            "waited_cpu_sec": starved * seconds,
            "throttled_sec": throttled * seconds,
            # Many small requests count as waiting for disks, but take CPU time.
            "disk_sec": min(shares["disk"], idle) * seconds,
            "memory_sec": shares["memory"] * seconds,
            "waited_sec": (shares["waiting"] + shares["network"]) * seconds,
            "computed": computing * seconds,
            "cpu_sec": span.used * seconds,
        }
    return found


def _measure_input(loop: str, summary: Mapping[str, float]) -> float:
    """Return for how many seconds the steps of a loop waited for their input."""
    step_ms = summary.get(f"{loop}/mean_ms", summary.get(f"{loop}/p50_ms", 0.0))
    return summary[f"{loop}/input_pct"] / 100.0 * summary.get(f"{loop}/count", 0.0) * step_ms / 1e3
