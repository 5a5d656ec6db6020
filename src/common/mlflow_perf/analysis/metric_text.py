"""Unit, direction and resolution of a metric, and how its values are written for people.

Imports the metric table. Keys that are not in the table (operations, GPUs by number, a user's own)
are judged by their ending.
"""

from __future__ import annotations

import math

from mlflow_perf.model.metrics import METRICS, RUN_METRICS, metric_for

__all__ = [
    "find_direction",
    "find_resolution",
    "find_unit",
    "format_change",
    "format_metric",
    "format_value",
    "rank_metric",
]

_KEYS = [*(m.key for m in METRICS), *(m.key for m in RUN_METRICS)]
_ORDER = {key: i for i, key in enumerate(_KEYS)}

# Ending of a key -> unit; the first that fits counts.
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

# What a difference must exceed before it is one, by unit: below it the sources themselves waver.
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

_HIGHER = ("throughput_mb_s", "utilization_pct", "num_successful")
_NO_DIRECTION = ("count", "min_ms", "total_ms")


def find_unit(key: str) -> str:
    """Return the unit of a metric, `""` where it has none or none is known."""
    metric = metric_for(key)
    if metric is not None:
        return metric.unit
    return next((name for ending, name in _UNITS if key.endswith(ending)), "")


def find_direction(key: str) -> str:
    """Return `"lower"` or `"higher"` where one is better for the same work, else `""`."""
    metric = metric_for(key)
    if metric is not None:
        return metric.better
    if key.endswith(_HIGHER):
        return "higher"
    lower = key.startswith("transfers/") and "num_failed" in key
    slow = key.endswith("_ms") and not key.endswith(_NO_DIRECTION)
    return "lower" if lower or slow else ""


def find_resolution(key: str) -> float:
    """Return the difference below which two values of a metric are the same."""
    return _RESOLUTION.get(find_unit(key), 0.0)


def rank_metric(key: str) -> tuple[int, str]:
    """Return a sort key: the table's order, then the others by name."""
    return _ORDER.get(key, len(_ORDER)), key


def format_value(value: float | None, of_unit: str = "") -> str:
    """Return a value with its unit, three or four figures long: `1,537 MB`, `0.42 s`, `–`."""
    if value is None or math.isnan(value):
        return "–"
    text = _digits(value)
    separator = "" if of_unit == "%" else " "
    return f"{text}{separator}{of_unit}" if of_unit else text


def format_metric(key: str, value: float | None) -> str:
    """Return a value of a metric with the metric's unit."""
    return format_value(value, find_unit(key))


def _digits(value: float) -> str:
    size = abs(value)
    if size == 0 or math.isinf(value):
        return f"{value:g}"
    if size >= 1e9 or size < 1e-3:
        return f"{value:.2e}"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if size >= 10 else f"{value:.3g}"


def format_change(change_pct: float | None) -> str:
    """Return a relative change with its sign: `+12.3%`, `–` where there is none."""
    if change_pct is None:
        return "–"
    if abs(change_pct) >= 1000:
        return f"{change_pct:+,.0f}%"
    return f"{round(change_pct, 1) + 0.0:+.1f}%"  # + 0.0 makes -0.0 a 0.0
