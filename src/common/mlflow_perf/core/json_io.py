"""Plain data to strict JSON, texts to whole files: what everything that is stored goes through.

Imports nothing of ours.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Columns", "columns_of", "from_json", "to_json", "write_text"]

Columns = dict[str, list["float | None"]]
"""Column name → values in the order of time, all of one length, None where one is missing."""


def _strict(value: Any) -> Any:
    """Return plain data without NaN and infinity, which JSON does not have: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(v) for v in value]
    return value


def to_json(data: Any) -> str:
    """Return plain data as strict JSON on one line."""
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_strict(data), allow_nan=False, separators=(",", ":"))


_MOST_DIGITS = 300
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_HALF_PAIR_BYTES = re.compile(rb"\\u[dD][89a-fA-F]")


def from_json(text: str | bytes) -> Any:
    """Return the data in a JSON text; a whole number beyond every float becomes the largest one.

    NaN and infinity, which other programs write though JSON does not have them, become None.

    Raises:
        ValueError: When it is not JSON.
        RecursionError: When it is nested without end.
    """
    data = json.loads(text, parse_int=_whole, parse_constant=_no_number)
    found = _HALF_PAIR.search(text) if isinstance(text, str) else _HALF_PAIR_BYTES.search(text)
    if found:
        # Half a pair is no character: nothing that shows or stores it could write it.
        plain = json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")
        data = json.loads(plain, parse_int=_whole)
    return data


def _no_number(_: str) -> None:
    """Stand for NaN, Infinity and -Infinity."""


def _whole(digits: str) -> float:
    if len(digits) <= _MOST_DIGITS:
        return int(digits)
    return -sys.float_info.max if digits[0] == "-" else sys.float_info.max


def write_text(path: Path, text: str) -> Path:
    """Write a text file so that a reader sees the old one or the whole new one.

    Raises:
        OSError: When the place cannot be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp makes files that only their owner may read.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # noqa: PTH101 - the name is a text here
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def columns_of(table: Mapping[str, Iterable[float]]) -> Columns:
    """Return a series' columns rounded for storage, None where a value is NaN.

    Percentages keep 2 decimals, times 3 and everything else 4: below what any source resolves.
    """
    return {name: _rounded(values, _decimals(name)) for name, values in table.items()}


def _decimals(name: str) -> int:
    if "pct" in name or "percent" in name:
        return 2
    return 3 if name == "timestamp" or name.endswith("_sec") else 4


def _rounded(values: Iterable[float], decimals: int) -> list[float | None]:
    return [round(v, decimals) if v - v == 0.0 else None for v in values]
