"""Recorded operations as JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from mlflow_perf.errors import DocumentError
from mlflow_perf.model.sketch import Buckets, Sketch, finite
from mlflow_perf.recorders.operations.keys import as_text, hide_secrets, json_key, unjson_key
from mlflow_perf.recorders.operations.stats import Metrics, TimeStats

_MAX_ATTRIBUTE = 10_000


def to_dict(
    by_key: Mapping[Any, Metrics], buckets: Mapping[str, Buckets], max_keys: int | None
) -> dict[str, Any]:
    """Return the records as strict JSON.

    Args:
        by_key: What was recorded for each key.
        buckets: Distribution of each operation, over all keys.
        max_keys: How many keys to list separately; None for all.

    Returns:
        `keys`, a list of the separate keys with their figures; `times`, `counters` and `attributes`
        of all others; `sketches` of the times.
    """
    rest = Metrics()
    keys: list[dict[str, Any]] = []
    for key, metrics in by_key.items():
        if key is not None and (max_keys is None or len(keys) < max_keys):
            keys.append({"key": json_key(key), **_metrics_to_dict(metrics)})
            continue
        for name, times in metrics.times.items():
            rest.times.setdefault(name, TimeStats()).add_sums(times)
        for name, value in metrics.counters.items():
            rest.counters[name] = rest.counters.get(name, 0) + value
        # An attribute without a key is one of the whole: those of single keys do not replace it.
        mine, theirs = rest.attributes, metrics.attributes
        rest.attributes = mine | theirs if key is None else theirs | mine
    data = _metrics_to_dict(rest)
    data["sketches"] = {name: Sketch(counts).as_dict() for name, counts in buckets.items()}
    if keys:
        data["keys"] = keys
    return {part: value for part, value in data.items() if value}


def _metrics_to_dict(metrics: Metrics) -> dict[str, Any]:
    return {
        "times": {
            name: {
                "count": times.count,
                "total_ms": times.total_time_ms,
                "min_ms": times.min_time_ms if times.count else 0.0,
                "max_ms": times.max_time_ms,
                "last_ms": times.last_time_ms,
                "last_timestamp": times.last_timestamp,
            }
            for name, times in metrics.times.items()
        },
        "counters": dict(metrics.counters),
        "attributes": {name: json_value(value) for name, value in metrics.attributes.items()},
    }


def from_dict(data: Mapping[str, Any]) -> tuple[list[tuple[Any, Metrics]], dict[str, Buckets]]:
    """Return keys with their figures, and distributions by operation, from `to_dict`'s data.

    Raises:
        DocumentError: If the data is something else.
    """
    try:
        by_key = [(None, _metrics_from_dict(data))]
        by_key += [
            (unjson_key(part["key"]), _metrics_from_dict(part)) for part in data.get("keys", ())
        ]
        buckets = {
            str(name): Sketch.from_dict(part).buckets
            for name, part in data.get("sketches", {}).items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DocumentError(f"Recorded operations cannot be read: {error!r}.") from error
    return by_key, buckets


def _metrics_from_dict(data: Mapping[str, Any]) -> Metrics:
    metrics = Metrics({str(name): value for name, value in data.get("attributes", {}).items()})
    for name, value in data.get("counters", {}).items():
        # Not `isfinite`, which takes no whole number beyond the floats: a counter may be one.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value - value != 0:
            raise ValueError(f"{value!r} is not a finite number")
        metrics.counters[name] = value
    for name, part in data.get("times", {}).items():
        times = metrics.times[name] = TimeStats()
        times.count = int(finite(part["count"]))
        times.total_time_ms = finite(part["total_ms"])
        times.min_time_ms = finite(part["min_ms"]) if times.count else math.inf
        times.max_time_ms = finite(part["max_ms"])
        times.last_time_ms = finite(part["last_ms"])
        times.last_timestamp = finite(part["last_timestamp"])
    return metrics


def json_value(value: Any) -> Any:
    """Return an attribute's value for JSON: unchanged if it is JSON and not large, else as text."""
    try:
        text = json.dumps(value, allow_nan=False)
        if len(text) <= _MAX_ATTRIBUTE:
            return _hide_all(value) if "://" in text else value
    except (TypeError, ValueError, RecursionError):
        pass
    return hide_secrets(as_text(value))


def _hide_all(value: Any) -> Any:
    """Return JSON data without the passwords and queries of the addresses in its texts."""
    if isinstance(value, dict):
        return {key: _hide_all(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hide_all(item) for item in value]
    return hide_secrets(value) if isinstance(value, str) else value
