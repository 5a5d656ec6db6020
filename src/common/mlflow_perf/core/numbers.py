"""Numbers out of plain data that others wrote. Imports nothing of ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["number_in", "numbers_in"]


def number_in(value: Any) -> float | None:
    """Return a finite number, or None for whatever else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    # Not `isfinite`, which takes no whole number beyond the floats: a counter may be one.
    return float(value) if abs(value) <= sys.float_info.max else None


def numbers_in(data: Any) -> dict[str, float]:
    """Return what is a finite number in a mapping, by its name; nothing of what is no mapping."""
    items = data.items() if isinstance(data, Mapping) else ()
    return {str(k): v for k, value in items if (v := number_in(value)) is not None}
