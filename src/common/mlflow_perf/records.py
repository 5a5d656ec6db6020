"""Frozen records that all parts of the package share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["MB", "Column", "Kind"]

MB = 1 << 20
"""Bytes per MB in every key, column and page."""


class Kind(Enum):
    """The behaviour of a column's values over time."""

    GAUGE = "gauge"
    """A level at an instant or over an interval; neighbouring rows merge to a mean."""

    COUNTER = "counter"
    """A sum that only grows; its total over a block is a difference of two rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """A value that a reader writes into each report.

    Attributes:
        name: Key in the report, with its unit: `disk_io_read_mb`.
        kind: Gauge or counter.
        unit: Unit for display: `MB`, `%`, `s`.
        meaning: One sentence for documentation and tooltips.
        is_rate: Whether a value is of the interval that ends with its report, not of an instant.
            The block's first report has none.
        is_from_zero: Whether a counter was 0 when the block began. Otherwise the first value that
            is read is what it counts from.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str = ""
    is_rate: bool = False
    is_from_zero: bool = False
