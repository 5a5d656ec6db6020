"""The course of a loop's steps over time: bounded rows, thinned by merging neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.model.sketch import finite

MOST_ROWS = 240
_FIRST_ROW_SEC = 0.02


@dataclass(frozen=True)
class CourseRow:
    """Some successive steps.

    Attributes:
        timestamp: Unix time at which the last of them ended.
        count: How many they are.
        step_ms: Sum of their times.
        max_ms: The longest of them.
        parts_ms: Name of a part → sum of its times.
    """

    timestamp: float
    count: int
    step_ms: float
    max_ms: float
    parts_ms: Mapping[str, float]

    def join(self, later: CourseRow) -> CourseRow:
        """Return one row of the steps of both."""
        parts = dict(self.parts_ms)
        for name, value in later.parts_ms.items():
            parts[name] = parts.get(name, 0.0) + value
        return CourseRow(
            max(self.timestamp, later.timestamp),
            self.count + later.count,
            self.step_ms + later.step_ms,
            max(self.max_ms, later.max_ms),
            parts,
        )


@dataclass
class Course:
    """The rows in the order of time.

    A new one is to hold `row_sec` seconds, twice as many after each thinning.
    """

    rows: list[CourseRow] = field(default_factory=list)
    row_sec: float = _FIRST_ROW_SEC

    def append(self, row: CourseRow) -> None:
        """Add a row; beyond the bound, each two neighbours become one."""
        self.rows.append(row)
        if len(self.rows) > MOST_ROWS:
            self.rows = halve(self.rows)
            self.row_sec *= 2

    def merge(self, other: Course) -> None:
        """Add the rows of another course of the same rank."""
        in_order = (
            not self.rows or not other.rows or self.rows[-1].timestamp <= other.rows[0].timestamp
        )
        for row in other.rows:
            self.append(row)
        if not in_order:
            self.rows.sort(key=lambda row: row.timestamp)

    def as_dict(self, most_rows: int | None = None) -> dict[str, Any]:
        """Return the rows as columns of equal length: at most `most_rows`, or all."""
        rows = self.rows
        while most_rows is not None and len(rows) > max(2, most_rows):
            rows = halve(rows)
        names = dict.fromkeys(name for row in rows for name in row.parts_ms)
        return {
            "timestamp": [round(row.timestamp, 3) for row in rows],
            "count": [row.count for row in rows],
            "step_ms": [round(row.step_ms, 4) for row in rows],
            "max_ms": [round(row.max_ms, 4) for row in rows],
            "parts_ms": {
                name: [round(row.parts_ms.get(name, 0.0), 4) for row in rows] for name in names
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Course:
        """Rebuild a course.

        Raises:
            ValueError: If `as_dict` did not write it.
            LookupError: Likewise.
        """
        parts = data.get("parts_ms", {})
        new = cls()
        for i, timestamp in enumerate(data.get("timestamp", ())):
            new.append(
                CourseRow(
                    finite(timestamp),
                    int(finite(data["count"][i])),
                    finite(data["step_ms"][i]),
                    finite(data["max_ms"][i]),
                    {str(name): finite(column[i]) for name, column in parts.items()},
                )
            )
        return new


def halve(rows: list[CourseRow]) -> list[CourseRow]:
    """Return half as many rows, each of two neighbours; an odd last one stays."""
    pairs = [a.join(b) for a, b in zip(rows[::2], rows[1::2], strict=False)]
    return pairs + rows[len(pairs) * 2 :]
