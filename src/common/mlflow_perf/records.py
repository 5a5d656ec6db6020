"""The frozen records that pass between the parts. Imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["MB", "Column", "Kind"]

MB = 1 << 20
"""Bytes in what every key, column and page calls a MB."""


class Kind(Enum):
    """How the values of a column behave in time."""

    GAUGE = "gauge"
    """A level at an instant, or over the interval that ends there; neighbours merge to a mean."""

    COUNTER = "counter"
    """A sum that only grows; its total over a block is a difference, never a sum of rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """One value that a reader puts into each report.

    Attributes:
        name: Key in the report, with its unit: `disk_io_read_mb`.
        kind: Whether it is a level or a growing sum.
        unit: Unit as shown to people: `MB`, `%`, `s`.
        meaning: One sentence for documentation and tooltips.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str = ""
