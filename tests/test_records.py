"""The records that all parts of the package share."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from mlflow_perf.records import MB, Column, Kind


def test_a_column_is_a_frozen_value() -> None:
    """Equal columns are one key, and a column cannot change."""
    column = Column("queue_length", Kind.GAUGE, "")
    assert {column, Column("queue_length", Kind.GAUGE, "")} == {column}
    with pytest.raises(FrozenInstanceError):
        column.unit = "s"  # type: ignore[misc]
    assert MB == 2**20
