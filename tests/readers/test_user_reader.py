"""The wrapper around users' readers: a fault costs only the reader's own values."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from mlflow_perf.errors import SettingError
from mlflow_perf.readers.user_reader import UserReader
from mlflow_perf.records import Column, Kind
from mlflow_perf.sampling.reader_set import ReaderSet


class Given:
    """A reader that puts given values into the report."""

    name = "given"
    columns: Any = (Column("queue", Kind.GAUGE, ""), Column("done", Kind.COUNTER, ""))

    def __init__(self, **values: Any) -> None:
        self.values = values

    def read(self, report: dict[Any, Any]) -> None:
        report.update(self.values)

    def close(self) -> None:
        pass


class Leaving(Given):
    """A reader that would end the job."""

    def read(self, report: dict[Any, Any]) -> None:
        sys.exit(3)


class Clearing(Given):
    """A reader that takes everything out."""

    def read(self, report: dict[Any, Any]) -> None:
        report.clear()


@pytest.mark.parametrize(
    ("reader", "taken"),
    [
        (Given(queue=1, done=2.0), {"queue": 1.0, "done": 0.0}),
        (Given(queue=np.float32(1.5), done=np.int64(2)), {"queue": 1.5, "done": 0.0}),
        (Given(queue=True, more=2), {"queue": 1.0, "more": 2.0}),
        (Given(queue="3", done=None), {}),
        (Given(queue=10**400, done=7), {"done": 0.0}),
        (Given(queue=math.nan, done=math.inf), {}),
        (Given(queue=np.zeros(3)), {}),
        (Given(timestamp=5.0, mem_percent=-1.0, queue=2), {"queue": 2.0}),
        (Leaving(), {}),
        (Clearing(), {}),
    ],
)
def test_only_numbers_for_own_columns_are_taken(reader: Given, taken: dict[str, float]) -> None:
    """Numbers of any type are taken; other values and other readers' columns are left out."""
    other = Given(mem_percent=50.0)
    report = ReaderSet([other, UserReader(reader)]).read({"timestamp": 1.0})
    assert report == {"timestamp": 1.0, "mem_percent": 50.0, **taken}
    assert all(type(value) is float for value in report.values())


@pytest.mark.parametrize("columns", [None, ("queue",), 5])
def test_a_wrong_reader_is_refused(columns: Any) -> None:
    """An object without a reader's attributes raises a SettingError that names it."""
    reader = Given()
    reader.columns = columns
    for wrong in (reader, None, "text", 7):
        with pytest.raises(SettingError, match="is no reader: it needs a name, columns"):
            UserReader(wrong)
