"""Conversion between Python data, strict JSON and files: everything stored passes through here."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from mlflow_perf.core.new_file import replacing

Columns = dict[str, list[float | None]]
"""Column name → values in the order of time, all of one length, None where one is missing."""


def to_json(data: Any) -> str:
    """Return plain data as strict JSON on one line; NaN and infinity become null.

    Raises:
        TypeError: When it holds something that is not plain data.
    """
    import msgspec  # late: a worker process that only records does not need it

    try:
        return msgspec.json.encode(data).decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        # A subclass such as numpy.float64, a key that is not a text, or half a surrogate pair.
        return json.dumps(_replace_nonfinite(data), allow_nan=False, separators=(",", ":"))


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _replace_nonfinite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_nonfinite(v) for v in value]
    return value


_MOST_DIGITS = 300
_DIGITS_TO_ZERO = bytes(ord("0") if chr(byte).isdecimal() else byte for byte in range(256))
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


def from_json(text: str | bytes) -> Any:
    """Return the data in a JSON text; a whole number beyond every float becomes the largest one.

    NaN and infinity, which other programs write although JSON lacks them, become None.

    Raises:
        ValueError: When it is not JSON.
        RecursionError: When it is nested too deeply.
    """
    import msgspec

    try:
        raw = text.encode() if isinstance(text, str) else text
        if b"0" * (_MOST_DIGITS + 1) not in raw.translate(_DIGITS_TO_ZERO):
            return msgspec.json.decode(raw)
    except (ValueError, msgspec.MsgspecError):  # before 0.20 its errors are no ValueErrors
        pass  # not JSON, or what msgspec is too strict for: `json` decides

    def read_whole(digits: str) -> float:
        if len(digits) <= _MOST_DIGITS:
            return int(digits)
        return -sys.float_info.max if digits[0] == "-" else sys.float_info.max

    data = json.loads(text, parse_int=read_whole, parse_constant=lambda _: None)
    if _HALF_PAIR.search(text.encode("utf-8", "replace") if isinstance(text, str) else text):
        # Half a surrogate pair is no character: it could be neither shown nor stored.
        plain = json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")
        data = json.loads(plain, parse_int=read_whole)
    return data


def to_plain(value: Any) -> Any:
    """Return a value as plain data: a dataclass becomes a dict of its fields, a tuple a list."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def read_number(value: Any) -> float | None:
    """Return a finite number as a float, or None for anything else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    # Not `isfinite`, which raises for a whole number beyond the floats: a counter may be one.
    return float(value) if abs(value) <= sys.float_info.max else None


def read_numbers(data: Any) -> dict[str, float]:
    """Return the finite numbers of a mapping by their names; nothing if it is not a mapping."""
    items = data.items() if isinstance(data, Mapping) else ()
    return {str(k): v for k, value in items if (v := read_number(value)) is not None}


def require_number(value: Any, *, least: float = -math.inf) -> float:
    """Return a finite number as a float.

    Args:
        value: What should be a number.
        least: The smallest number that is allowed.

    Raises:
        ValueError: If it is not finite, too small, or not a number.
    """
    number = read_number(value)
    if number is None or number < least:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise ValueError(f"{value!r} is not a finite number{bound}")
    return number


def write_text(path: Path, text: str) -> Path:
    """Write a text file so that a reader sees the old one or the whole new one.

    Raises:
        OSError: When the place cannot be written.
    """
    with replacing(path) as begun:
        begun.write_text(text, encoding="utf-8")
    return path


def round_columns(table: Mapping[str, Iterable[float]]) -> Columns:
    """Return a series' columns rounded for storage, None where a value is NaN.

    Percentages keep 2 decimals, times 3 and everything else 4: finer than any source measures.
    """
    columns: Columns = {}
    for name, values in table.items():
        if "pct" in name or "percent" in name:
            decimals = 2
        else:
            decimals = 3 if name == "timestamp" or name.endswith("_sec") else 4
        columns[name] = [round(v, decimals) if v - v == 0.0 else None for v in values]
    return columns
