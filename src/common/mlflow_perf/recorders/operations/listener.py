"""What a recorder tells of each record as it is made. Imports only `entry`."""

from __future__ import annotations

from typing import Any, Protocol

from mlflow_perf.recorders.operations.entry import Count, Times

__all__ = ["RecordListener"]


class RecordListener(Protocol):
    """What is told of each record as it is made, under the recorder's lock."""

    def add_time(self, times: Times, time_ms: float, timestamp: float) -> None:
        """Keep a time."""
        ...

    def add_count(self, count: Count, value: float) -> None:
        """Keep an increment."""
        ...

    def add_attribute(self, name: str, key: Any, value: Any) -> None:
        """Keep an attribute."""
        ...

    def close(self) -> None:
        """Keep nothing more."""
        ...
