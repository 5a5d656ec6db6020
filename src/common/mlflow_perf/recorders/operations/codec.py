"""Recorded operations as JSON and back.

Imports only errors, sketch, `entry` and `keys`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from mlflow_perf.errors import DocumentError
from mlflow_perf.model.sketch import Buckets, Sketch, finite
from mlflow_perf.recorders.operations.entry import Count, Entry, Times
from mlflow_perf.recorders.operations.keys import as_text, json_key, unjson_key

__all__ = ["from_dict", "json_value", "to_dict"]

_MAX_ATTRIBUTE = 10_000


def to_dict(
    entries: Mapping[Any, Entry], buckets: Mapping[str, Buckets], max_keys: int | None
) -> dict[str, Any]:
    """Return what was recorded as strict JSON.

    Args:
        entries: By key.
        buckets: Distribution of each operation, over all keys.
        max_keys: How many keys to tell apart; None for all.

    Returns:
        `times`, `counters` and `attributes` of all that is not told apart, `sketches` of the times,
        and `keys`, a list of the keys told apart with theirs.
    """
    rest = Entry()
    keys: list[dict[str, Any]] = []
    for key, entry in entries.items():
        if key is not None and (max_keys is None or len(keys) < max_keys):
            keys.append({"key": json_key(key), **_entry_to_dict(entry)})
        else:
            _add(rest, entry, first=key is None)
    data = _entry_to_dict(rest)
    data["sketches"] = {name: Sketch(counts).as_dict() for name, counts in buckets.items()}
    if keys:
        data["keys"] = keys
    return {part: value for part, value in data.items() if value}


def _add(to: Entry, entry: Entry, *, first: bool) -> None:
    for name, times in entry.times.items():
        to.times.setdefault(name, Times(name, None, {})).absorb(times)
    for name, count in entry.counters.items():
        to.counters.setdefault(name, Count(name, None)).value += count.value
    # An attribute of no key stands for the whole: those of single keys do not replace it.
    to.attributes = to.attributes | entry.attributes if first else entry.attributes | to.attributes


def _entry_to_dict(entry: Entry) -> dict[str, Any]:
    return {
        "times": {name: _times_to_dict(times) for name, times in entry.times.items()},
        "counters": {name: count.value for name, count in entry.counters.items()},
        "attributes": {name: json_value(value) for name, value in entry.attributes.items()},
    }


def _times_to_dict(times: Times) -> dict[str, Any]:
    return {
        "count": times.count,
        "total_ms": times.total,
        "min_ms": times.smallest if times.count else 0.0,
        "max_ms": times.largest,
        "last_ms": times.last,
        "last_timestamp": times.timestamp,
    }


def from_dict(data: Mapping[str, Any]) -> tuple[list[tuple[Any, Entry]], dict[str, Sketch]]:
    """Read what `to_dict` wrote.

    Returns:
        Keys with their entries, and the distributions by operation.

    Raises:
        DocumentError: If it is something else.
    """
    try:
        entries = [(None, _entry(data))]
        entries += [(unjson_key(part["key"]), _entry(part)) for part in data.get("keys", ())]
        sketches = {
            str(name): Sketch.from_dict(part) for name, part in data.get("sketches", {}).items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DocumentError(f"Recorded operations cannot be read: {error!r}.") from error
    return entries, sketches


def _entry(data: Mapping[str, Any]) -> Entry:
    entry = Entry()
    entry.attributes = {str(name): value for name, value in data.get("attributes", {}).items()}
    for name, value in data.get("counters", {}).items():
        entry.counters[name] = Count(name, None, _number(value))
    for name, part in data.get("times", {}).items():
        entry.times[name] = _times(name, part)
    return entry


def _times(name: str, data: Mapping[str, Any]) -> Times:
    times = Times(name, None, {})
    times.count = int(finite(data["count"]))
    times.total = finite(data["total_ms"])
    times.smallest = finite(data["min_ms"]) if times.count else math.inf
    times.largest = finite(data["max_ms"])
    times.last = finite(data["last_ms"])
    times.timestamp = finite(data["last_timestamp"])
    return times


def _number(value: Any) -> float:
    # Not `isfinite`, which takes no whole number beyond the floats: a counter may be one.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value - value != 0:
        raise ValueError(f"{value!r} is not a finite number")
    return value


def json_value(value: Any) -> Any:
    """Return an attribute's value for JSON: as it is if it is JSON and not large, else as text."""
    try:
        if len(json.dumps(value, allow_nan=False)) <= _MAX_ATTRIBUTE:
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    return as_text(value)
