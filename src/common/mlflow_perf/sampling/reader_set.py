"""The readers of one job together: asked in turn, their counters counted from the job's start.

Imports readers and the column table. The sampler's edge to its sources: one that fails costs only
its own values.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from mlflow_perf.model.columns import lookup_kind
from mlflow_perf.readers import Reader
from mlflow_perf.records import Kind

__all__ = ["Glancing", "ReaderSet"]

_log = logging.getLogger(__name__)


@runtime_checkable
class Glancing(Protocol):
    """A reader whose figures can peak between two samples."""

    def sample_peak(self) -> None:
        """Take note of the present values; the next `read` tells their peak."""
        ...


class ReaderSet:
    """The readers of one job: asks them all, and counts counters from the job's start.

    Args:
        readers: The readers.
    """

    def __init__(self, readers: Iterable[Reader]) -> None:
        self._readers = list(readers)
        self._glancing = [reader for reader in self._readers if isinstance(reader, Glancing)]
        self._counters = {
            column.name: [math.nan, 0.0]  # newest reading, sum of its growth
            for reader in self._readers
            for column in reader.columns
            if column.kind is Kind.COUNTER
        }
        self._failed: set[str] = set()

    @property
    def counters(self) -> list[str]:
        """Names of the columns that are counters."""
        return list(self._counters)

    def kind(self, name: str) -> Kind:
        """Return how a column's values behave."""
        return Kind.COUNTER if name in self._counters else lookup_kind(name)

    def read(self, report: dict[str, float]) -> dict[str, float]:
        """Ask every reader and return the report; one that fails costs only its own values."""
        raw: dict[str, float] = {}
        for reader in self._readers:
            try:
                reader.read(raw)
            # The sampler's edge: whatever a source does, the others go on and so does the job.
            except Exception:  # noqa: BLE001
                self._warn_once(reader.name)
        counters = self._counters
        for name, value in raw.items():
            if value - value != 0.0:  # NaN or infinite
                continue
            counter = counters.get(name)
            if counter is None:
                report[name] = value
                continue
            growth = value - counter[0]
            if growth > 0.0:
                counter[1] += growth
            counter[0] = value
            report[name] = counter[1]
        return report

    @property
    def glances(self) -> bool:
        """Whether a reader can take a quick look."""
        return bool(self._glancing)

    def sample_peak(self) -> None:
        """Let the readers that can take a quick look."""
        for reader in self._glancing:
            try:
                reader.sample_peak()
            except Exception:  # noqa: BLE001 - as in read
                self._warn_once(reader.name)

    def _warn_once(self, name: str) -> None:
        if name not in self._failed:
            self._failed.add(name)
            _log.warning(
                "The source %r cannot be read now; its figures are left out while that lasts.",
                name,
                exc_info=True,
            )

    def close(self) -> None:
        """Close every reader."""
        for reader in self._readers:
            try:
                reader.close()
            except Exception:  # noqa: BLE001 - as in read: a source never ends the job
                self._warn_once(reader.name)
