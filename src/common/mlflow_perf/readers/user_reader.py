"""The wrapper around a user's reader: its faults cost only its own values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mlflow_perf.errors import SettingError
from mlflow_perf.model.columns import COLUMNS
from mlflow_perf.records import Column


class UserReader:
    """Asks a user's reader and takes from it only numbers for columns of its own.

    Numbers of any type (numpy's, for example) become floats. Any other value is left out, and so is
    a column of ours that the reader does not declare.

    Args:
        reader: The user's reader.

    Raises:
        SettingError: When it lacks an attribute or method of a reader.
    """

    def __init__(self, reader: Any) -> None:
        self.name = str(getattr(reader, "name", "") or type(reader).__name__)
        columns = getattr(reader, "columns", None)
        sound = all(callable(getattr(reader, method, None)) for method in ("read", "close"))
        if (
            not sound
            or not isinstance(columns, (list, tuple))
            or not all(isinstance(column, Column) for column in columns)
        ):
            raise SettingError(
                f"{self.name!r:.100} is no reader: it needs a name, columns (a tuple of Column), "
                "read(report) and close()."
            )
        self.columns: Sequence[Column] = tuple(columns)
        self._reader = reader
        self._ours = COLUMNS.keys() - {column.name for column in self.columns} | {"timestamp"}
        if callable(getattr(reader, "sample_peak", None)):
            self.sample_peak = reader.sample_peak

    @classmethod
    def from_factory(cls, factory: Callable[[], Any]) -> UserReader:
        """Wrap the reader that a user's factory makes.

        Raises:
            Exception: Any exception of the factory; RuntimeError in place of its SystemExit.
        """
        try:
            return cls(factory())
        except SystemExit as error:
            raise RuntimeError("the reader calls sys.exit") from error

    def read(self, report: dict[str, float]) -> None:
        """Put the reader's numbers into `report`.

        Raises:
            Exception: Any exception of the reader; RuntimeError in place of its SystemExit.
        """
        found: dict[Any, Any] = {}
        try:
            self._reader.read(found)
        except SystemExit as error:
            raise RuntimeError("the reader calls sys.exit") from error
        wrong = []
        for name, value in found.items():
            try:
                number = None if isinstance(value, (str, bytes)) else float(value)
            except (TypeError, ValueError, OverflowError):
                number = None
            if number is None or not isinstance(name, str) or name in self._ours:
                wrong.append(name)
            elif math.isfinite(number):
                report[name] = number
        if wrong:
            raise TypeError(f"no column of its own with a number: {wrong!r:.200}")

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()
