"""Numbers out of plain data that others wrote. Imports nothing of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["number_in", "numbers_in"]


def number_in(value: Any) -> float | None:
    """Return a finite number, or None for whatever else."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) else None


def numbers_in(data: Any) -> dict[str, float]:
    """Return what is a finite number in a mapping, by its name; nothing of what is no mapping."""
    items = data.items() if isinstance(data, Mapping) else ()
    return {str(k): v for k, value in items if (v := number_in(value)) is not None}
