"""The edge to a reader of somebody else's: what it does wrong costs its own figures only.

Imports errors, records, base and the column table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mlflow_perf.errors import SettingError
from mlflow_perf.model.columns import COLUMNS
from mlflow_perf.records import Column

__all__ = ["UserReader"]


class UserReader:
    """Asks a reader that was added, and takes from it what can be a figure.

    Values become floats, as of numpy's numbers; what is none, and a column of ours that the reader
    does not declare, is left out.

    Args:
        reader: The reader.

    Raises:
        SettingError: When it has not the attributes and methods of a reader.
    """

    def __init__(self, reader: Any) -> None:
        self.name, self.columns = _described(reader)
        self._reader = reader
        self._ours = COLUMNS.keys() - {column.name for column in self.columns} | {"timestamp"}
        if callable(getattr(reader, "sample_peak", None)):
            self.sample_peak = reader.sample_peak

    def read(self, report: dict[str, float]) -> None:
        """Put the reader's figures into `report`.

        Raises:
            Exception: Whatever the reader raises; RuntimeError where it wants to end the job.
        """
        found: dict[Any, Any] = {}
        try:
            self._reader.read(found)
        except SystemExit as error:
            raise RuntimeError("the reader calls sys.exit") from error
        wrong = []
        for name, value in found.items():
            number = _number(value)
            if number is None or not isinstance(name, str) or name in self._ours:
                wrong.append(name)
            elif math.isfinite(number):
                report[name] = number
        if wrong:
            raise TypeError(f"no column of its own with a number: {wrong!r:.200}")

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def _described(reader: Any) -> tuple[str, Sequence[Column]]:
    name = str(getattr(reader, "name", "") or type(reader).__name__)
    columns = getattr(reader, "columns", None)
    sound = all(callable(getattr(reader, method, None)) for method in ("read", "close"))
    sound = sound and isinstance(columns, (list, tuple))
    if columns is None or not sound or not all(isinstance(column, Column) for column in columns):
        raise SettingError(
            f"{name!r:.100} is no reader: it needs a name, columns (a tuple of Column), "
            "read(report) and close()."
        )
    return name, tuple(columns)


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
