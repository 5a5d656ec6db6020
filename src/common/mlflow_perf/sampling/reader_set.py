"""All readers of one job, asked in turn, with counters that count from the job's start.

A reader that fails costs only its own values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol, cast

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import first_line
from mlflow_perf.model.columns import lookup_kind
from mlflow_perf.readers import Reader
from mlflow_perf.records import Kind

_log = get_logger(__name__)


class PeakSampler(Protocol):
    """A reader whose values can peak between two samples."""

    def sample_peak(self) -> None:
        """Note the present values; the next `read` reports their peak."""
        ...


class ReaderSet:
    """Asks all readers of one job, and counts counters from the job's start.

    Args:
        readers: The readers.

    Attributes:
        rates: Names of the columns whose values are of an interval, not of an instant.
    """

    def __init__(self, readers: Iterable[Reader]) -> None:
        self._readers = list(readers)
        # `isinstance` with a protocol takes 10 µs for each reader.
        self._peak_samplers = [
            (reader.name, cast(PeakSampler, reader))
            for reader in self._readers
            if hasattr(reader, "sample_peak")
        ]
        self._counters = {
            # newest reading, sum of its growth
            column.name: [0.0 if column.is_from_zero else math.nan, 0.0]
            for reader in self._readers
            for column in reader.columns
            if column.kind is Kind.COUNTER
        }
        self._failed: set[str] = set()
        self.rates = frozenset(
            column.name for reader in self._readers for column in reader.columns if column.is_rate
        )

    @property
    def counters(self) -> list[str]:
        """Names of the columns that are counters."""
        return list(self._counters)

    def kind(self, name: str) -> Kind:
        """Return whether a column is a gauge or a counter."""
        return Kind.COUNTER if name in self._counters else lookup_kind(name)

    def read(self, report: dict[str, float]) -> dict[str, float]:
        """Put the values of all readers into `report` and return it."""
        raw: dict[str, float] = {}
        for reader in self._readers:
            try:
                reader.read(raw)
            # Whatever a source does, the other sources and the job go on.
            except Exception as error:
                if is_from_handler(error):
                    raise
                self._warn_once(reader.name, error)
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
    def has_peaks(self) -> bool:
        """Whether a reader's values can peak between two samples."""
        return bool(self._peak_samplers)

    def sample_peak(self) -> None:
        """Let the readers whose values can peak between two samples note their present values."""
        for name, reader in self._peak_samplers:
            try:
                reader.sample_peak()
            except Exception as error:  # noqa: BLE001 - as in read
                self._warn_once(name, error)

    def _warn_once(self, name: str, error: Exception) -> None:
        if name not in self._failed:
            self._failed.add(name)
            _log.warning(
                "The source %r cannot be read now; its values are left out until it can be: %s",
                name,
                first_line(error),
            )
            _log.debug("Not read:", exc_info=error)

    def close(self) -> None:
        """Close every reader."""
        for reader in self._readers:
            try:
                reader.close()
            except Exception as error:  # as in read: a source never ends the job
                if is_from_handler(error):
                    raise
                self._warn_once(reader.name, error)
