"""The three ways in which a fleet's sums are read: all give the same."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_perf.tracking import fleet_sql, fleet_store
from mlflow_perf.tracking.fleet_sums import Sums

WAYS = ("sqlite", "other databases", "search")


def read_sums(by: str, monkeypatch: pytest.MonkeyPatch, way: str, **bounds: int) -> dict[Any, Sums]:
    """Return the sums as one of three ways finds them in the same store."""
    with monkeypatch.context() as patch:
        if way == "search":
            patch.setattr(fleet_store, "find_sql_store", lambda _: None)
        if way == "other databases":
            patch.setattr(fleet_sql, "_is_sqlite", lambda _: False)
        return {sums.group: sums for sums in fleet_store.sum_runs(by, **bounds)}
