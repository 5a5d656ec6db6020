"""The spool file of a recorder of operations: how its records are written and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow_perf.recorders.operations.codec import json_value
from mlflow_perf.recorders.operations.entry import Count, RecordedTimes
from mlflow_perf.recorders.operations.keys import json_key
from mlflow_perf.recorders.record_spool import RecordSpool
from mlflow_perf.recorders.spool import BLOB

KIND = "ops"
"""First part of the names of these files."""

TIME, COUNT = 1, 2
"""Kinds of records of two floats: a time and its timestamp; an increment and whether it is int."""

NAME_TIME, NAME_COUNT, BIG_COUNT, ATTRIBUTE = (BLOB + kind for kind in range(4))
"""Kinds of records of bytes: the name and key behind a number, an increment beyond the floats, and
an attribute."""

_EXACT = 2**53


class OperationSpool(RecordSpool):
    """Writes each time, increment and attribute of a recorder into a spool file.

    A record names its operation and key by a number, which a record before it explains.

    Args:
        folder: Spool folder.
        snapshot: Returns everything recorded so far.
    """

    def __init__(self, folder: Path, snapshot: Callable[[], dict[str, Any]]) -> None:
        super().__init__(folder, KIND, "Operations", lambda: self._begin_file(snapshot))
        self._named: list[RecordedTimes | Count] = []

    def add_time(self, times: RecordedTimes, time_ms: float, timestamp: float) -> None:
        """Write a time."""
        writer = self._writer
        if writer is None:
            self.write_all()
            return
        try:
            if times.ident or self._name(NAME_TIME, times):
                writer.append(TIME, times.ident, time_ms, timestamp)
        except Exception as error:  # noqa: BLE001 - never the job's
            self.give_up(error)

    def add_count(self, count: Count, value: float) -> None:
        """Write an increment."""
        writer = self._writer
        if writer is None:
            self.write_all()
            return
        try:
            if not (count.ident or self._name(NAME_COUNT, count)):
                return
            if type(value) is int and abs(value) > _EXACT:
                writer.append_blob(BIG_COUNT, count.ident, str(value).encode())
            else:
                writer.append(COUNT, count.ident, value, 1.0 if type(value) is int else 0.0)
        except Exception as error:  # noqa: BLE001 - never the job's
            self.give_up(error)

    def add_attribute(self, name: str, key: Any, value: Any) -> None:
        """Write an attribute."""
        self.write(ATTRIBUTE, 0, [name, json_key(key), json_value(value)])

    def _name(self, kind: int, named: RecordedTimes | Count) -> bool:
        """Give a time or a counter its number in this file.

        Returns:
            False if a new file was begun instead: its snapshot includes the present record.
        """
        assert self._writer is not None
        self._named.append(named)
        named.ident = len(self._named)
        parts = json.dumps([named.name, json_key(named.key)])
        self._writer.append_blob(kind, named.ident, parts.encode())
        return named.ident != 0

    def _begin_file(self, snapshot: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        # The numbers begin again: the new file names nothing yet.
        for named in self._named:
            named.ident = 0
        self._named = []
        return snapshot()
