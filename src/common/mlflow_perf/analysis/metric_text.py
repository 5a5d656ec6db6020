"""A metric's unit, direction and resolution, and its values as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from mlflow_perf.core.format import MISSING, cpu_time, format_count, number
from mlflow_perf.model.metrics import METRICS, RUN_METRICS, find_metric

_KEYS = [*(m.key for m in METRICS), *(m.key for m in RUN_METRICS)]
_MOST_NODES = 1e7  # a damaged document's figure may be infinite
_ORDER = {key: i for i, key in enumerate(_KEYS)}

# Keys that are not in the table (operations, single GPUs, a user's own) are judged by their ending.
# The first ending that fits counts.
_UNITS = (
    ("_pct", "%"),
    ("_percent", "%"),
    ("_per_mb", ""),
    ("_mb_s", "MB/s"),
    ("_mb", "MB"),
    ("_ms", "ms"),
    ("_sec", "s"),
    ("_hours", "h"),
    ("_wh", "Wh"),
    ("_cores", "cores"),
)
# What all processes of the node did: on a shared machine mostly others.
_OF_NODE = (
    "cpu_avg_utilization_",
    "cpu_steal_pct",
    "cpu_stall_pct",
    "host_",
    "idle_",
    "io_stall_pct",
    "iowait_pct",
    "max_t_cpu_",
    "max_t_disk_usage_",
    "max_t_mem_percent",
    "max_t_swap_",
    "mem_stall_pct",
    "node_unused_c",
    "node_used_c",
    "others_",
    "total_disk_io_",
    "total_net_io_",
    "unused_c",
)
_HIGHER = ("throughput_mb_s", "utilization_pct", "num_successful")
_NO_DIRECTION = ("count", "min_ms", "total_ms")

_MINOR_FIGURES = ("min_ms", "p50_ms", "p99_ms")
_SMALLEST = 0.001
# Smaller differences are noise of the sources themselves.
_RESOLUTION = {
    "%": 1.0,
    "MB": 1.0,
    "s": 0.05,
    "ms": 0.01,
    "cores": 0.05,
    "CPUs": 0.05,
    "h": 1e-5,
    "CPU h": 1e-5,
}


def find_unit(key: str) -> str:
    """Return the unit of a metric; `""` if it has none or none is known."""
    metric = find_metric(key)
    if metric is not None:
        return metric.unit
    return next((name for ending, name in _UNITS if key.endswith(ending)), "")


def find_direction(key: str) -> str:
    """Return `"lower"` or `"higher"` if that is better for the same work, else `""`."""
    metric = find_metric(key)
    if metric is not None:
        return metric.better
    if key.endswith(_HIGHER):
        return "higher"
    failures = key.startswith("transfers/") and "num_failed" in key
    slow = key.endswith("_ms") and not key.endswith(_NO_DIRECTION)
    waits = key.startswith("steps/") and key.endswith("/input_pct")
    return "lower" if failures or slow or waits else ""


def is_of_node(key: str) -> bool:
    """Return whether a metric counts what all processes of the node did, not the job alone."""
    return key.removeprefix("run_").startswith(_OF_NODE)


def find_resolution(key: str) -> float:
    """Return the difference up to which two values of a metric count as equal."""
    return _RESOLUTION.get(find_unit(key), 0.0)


def rank_metric(key: str) -> tuple[int, str]:
    """Return a sort key: the metric table's order, then all other metrics by name."""
    return _ORDER.get(key, len(_ORDER)), key


def format_metric(key: str, value: float | None) -> str:
    """Return a value of a metric with the metric's unit."""
    return format_value(value, find_unit(key))


def format_row(values: Sequence[float | None], unit: str = "") -> list[str]:
    """Return the values of one metric, all in the unit that suits the largest one."""
    known = [abs(value) for value in values if value is not None and math.isfinite(value)]
    return [format_value(value, unit, whole=max(known)) if known else MISSING for value in values]


def format_value(value: float | None, unit: str = "", *, whole: float | None = None) -> str:
    """Return a value in its own unit, so that values can be compared: `1,537 MB`, `0.4 CPU s`.

    Args:
        value: The value; None and values that are not finite become MISSING.
        unit: Its unit. With one, a value too small for it is shown as `<0.001`; a bare number, such
            as a learning rate, as `1.45e-06`.
        whole: The value that short CPU times share a unit with.
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if unit == "CPU h":
        return cpu_time(value, whole).replace("\u202f", ",")
    if 0 < abs(value) < _SMALLEST and unit:
        text = f"{'<' if value > 0 else '>-'}{_SMALLEST}"
    elif value and not unit and not _SMALLEST <= abs(value) < 1e9:
        text = f"{value:.2e}"
    else:
        text = number(value).replace("\u202f", ",")
    return text + unit if unit == "%" else f"{text} {unit}".rstrip()


def describe_node_count(count: int, nodes: Iterable[Mapping[str, float]]) -> str:
    """Return how many nodes have figures, and of how many: `1 of 2 nodes`.

    Other components of a job, or nodes that were lost, may have had the rest.

    Args:
        count: The number of nodes with figures.
        nodes: Their summaries.
    """
    of_job = max((node.get("node_count", 0.0) for node in nodes), default=0.0)
    if not count < of_job < _MOST_NODES:
        return format_count(count, "node")
    return f"{count:,} of {format_count(int(of_job), 'node')}"


def find_repeats(rows: Iterable[tuple[str, Sequence[float | None]]]) -> set[str]:
    """Return the metrics of operations that say little more than another one of the same.

    The times of an operation that ran once are all the same: its total is enough.

    Args:
        rows: Metrics with their values in each run.
    """
    known = [(key, *key.rpartition("/")[::2], values) for key, values in rows]
    once = {name for _, name, figure, values in known
            if figure == "count" and all(value in (None, 1) for value in values)}  # fmt: skip
    return {
        key
        for key, name, figure, _ in known
        if name.startswith(("ops/", "steps/"))
        and figure != "total_ms"
        and (name in once or figure in _MINOR_FIGURES)
    }
