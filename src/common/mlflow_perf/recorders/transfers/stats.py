"""`KVConnectorStats` and `NixlKVConnectorStats`: vLLM's recorders and figures, in bounded memory.

Imports only errors and sketch. vLLM keeps a list of every transfer until the next log line; here
each figure is a `Distribution`: exact while the transfers are few, within 1% after that.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from mlflow_perf.errors import DocumentError, SettingError
from mlflow_perf.model.sketch import Distribution

__all__ = ["COUNTS", "FIGURES", "Journal", "KVConnectorStats", "NixlKVConnectorStats", "Telemetry"]

FIGURES = ("transfer_duration", "post_duration", "bytes_transferred", "num_descriptors")
"""What is known of each successful transfer, by vLLM's names: seconds, seconds, bytes, a number."""

COUNTS = ("num_failed_transfers", "num_failed_notifications", "num_kv_expired_reqs")
"""What is only counted, by vLLM's names."""

_MIB = 2**20


class Telemetry(Protocol):
    """What NIXL tells of a finished transfer (`nixlXferTelemetry`).

    Attributes:
        xferDuration: From the post to the end, in microseconds.
        postDuration: Of the post, in microseconds.
        totalBytes: How much was transferred.
        descCount: How many descriptors it took.
    """

    xferDuration: float  # noqa: N815 - NIXL's name
    postDuration: float  # noqa: N815 - NIXL's name
    totalBytes: int  # noqa: N815 - NIXL's name
    descCount: int  # noqa: N815 - NIXL's name


class Journal(Protocol):
    """What is told of each record as it is made, under the statistics' lock."""

    def add_transfer(self, figures: tuple[float, ...]) -> None:
        """Keep a successful transfer: its `FIGURES`."""
        ...

    def add_count(self, place: int) -> None:
        """Keep an event: the place of its name in `COUNTS`."""
        ...

    def add_all(self) -> None:
        """Keep what was taken in from other statistics: everything anew."""
        ...


class KVConnectorStats:
    """Statistics of a connector between two times: what every connector's have in common."""

    def reset(self) -> None:
        """Forget everything."""
        raise NotImplementedError

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Take in what `other` has, and return these statistics."""
        raise NotImplementedError

    def reduce(self) -> dict[str, float]:
        """Return the figures for a log line."""
        raise NotImplementedError

    def is_empty(self) -> bool:
        """Tell whether nothing was recorded."""
        raise NotImplementedError


class NixlKVConnectorStats(KVConnectorStats):
    """Statistics of NIXL transfers, with vLLM's recorders and figures. Thread-safe.

    Args:
        data: What `as_dict` gave, or the `data` of vLLM's own class (lists by vLLM's names).

    Raises:
        DocumentError: If the data is neither.
    """

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        self._lock = threading.RLock()
        self._journal: Journal | None = None
        self._feeds: NixlKVConnectorStats | None = None
        self.reset()
        if data:
            self._read(data)

    def reset(self) -> None:
        """Forget everything."""
        with self._lock:
            self._figures = {name: Distribution() for name in FIGURES}
            self._counts = dict.fromkeys(COUNTS, 0)

    def record_transfer(self, res: Telemetry) -> None:
        """Record a successful transfer.

        Args:
            res: NIXL's telemetry of it.

        Raises:
            SettingError: If a figure of it is negative, not finite or not a number.
        """
        figures = tuple(
            _figure(res, attribute) / divisor
            for attribute, divisor in (
                ("xferDuration", 1e6), ("postDuration", 1e6), ("totalBytes", 1), ("descCount", 1),
            )
        )  # fmt: skip
        self.record_figures(figures)

    def record_figures(self, figures: tuple[float, ...]) -> None:
        """Record a successful transfer by its `FIGURES`: seconds, seconds, bytes, descriptors."""
        with self._lock:
            for distribution, value in zip(self._figures.values(), figures, strict=True):
                distribution.add(value)
            if self._journal is not None:
                self._journal.add_transfer(figures)
        if self._feeds is not None:
            self._feeds.record_figures(figures)

    def record_failed_transfer(self) -> None:
        """Record that a transfer failed."""
        self.record_count(0)

    def record_failed_notification(self) -> None:
        """Record that a notification could not be sent."""
        self.record_count(1)

    def record_kv_expired_req(self) -> None:
        """Record that a request's blocks expired before they were fetched."""
        self.record_count(2)

    def record_count(self, place: int) -> None:
        """Record an event by the place of its name in `COUNTS`."""
        with self._lock:
            self._counts[COUNTS[place]] += 1
            if self._journal is not None:
                self._journal.add_count(place)
        if self._feeds is not None:
            self._feeds.record_count(place)

    @property
    def num_successful_transfers(self) -> int:
        """How many transfers succeeded."""
        return self._figures["transfer_duration"].count

    def is_empty(self) -> bool:
        """Tell whether nothing was recorded; a failure is something."""
        with self._lock:
            return not self.num_successful_transfers and not any(self._counts.values())

    def clone_and_reset(self) -> NixlKVConnectorStats:
        """Hand over everything recorded so far, and begin anew; no record between is lost."""
        clone = NixlKVConnectorStats()
        with self._lock:
            clone._figures, clone._counts = self._figures, self._counts
            self.reset()
        return clone

    def aggregate(self, other: KVConnectorStats) -> NixlKVConnectorStats:
        """Take in what `other` has.

        Args:
            other: Statistics of ours, or of vLLM's own class.

        Returns:
            These statistics.

        Raises:
            DocumentError: If `other` is neither.
        """
        taken: NixlKVConnectorStats = _snapshot(other)
        with self._lock:
            for name, distribution in taken._figures.items():
                self._figures[name].merge(distribution)
            for name, count in taken._counts.items():
                self._counts[name] += count
            if self._journal is not None:
                self._journal.add_all()
        # What was made by `record` has told the session already.
        if self._feeds is not None and getattr(other, "_feeds", None) is None:
            self._feeds.aggregate(taken)
        return self

    def reduce(self) -> dict[str, float]:
        """Return vLLM's figures, in ms and MiB, rounded; all zeros without a success."""
        exact = self.figures()
        return {
            "Num successful transfers": self.num_successful_transfers,
            "Avg xfer time (ms)": round(exact["avg_xfer_time_ms"], 3),
            "P90 xfer time (ms)": round(exact["p90_xfer_time_ms"], 3),
            "Avg post time (ms)": round(exact["avg_post_time_ms"], 3),
            "P90 post time (ms)": round(exact["p90_post_time_ms"], 3),
            "Avg MB per transfer": round(exact["avg_mb_per_transfer"], 3),
            "Throughput (MB/s)": round(exact["throughput_mb_s"], 3),
            "Avg number of descriptors": round(exact["avg_num_descriptors"], 1),
        }

    def figures(self) -> dict[str, float]:
        """Return all figures by the names of their metrics, unrounded.

        Throughput is all bytes over the sum of the transfers' durations, as vLLM's: what one of
        several that run at the same time gets, not what they get together.
        """
        with self._lock:
            xfer, post, size, descriptors = self._figures.values()
            count = max(xfer.count, 1)
            return {
                "num_successful": float(xfer.count),
                "avg_xfer_time_ms": xfer.total / count * 1e3,
                "p90_xfer_time_ms": xfer.percentiles([90])[0] * 1e3,
                "avg_post_time_ms": post.total / count * 1e3,
                "p90_post_time_ms": post.percentiles([90])[0] * 1e3,
                "avg_mb_per_transfer": size.total / count / _MIB,
                "throughput_mb_s": size.total / _MIB / xfer.total if xfer.total else 0.0,
                "avg_num_descriptors": descriptors.total / count,
                **{name: float(number) for name, number in self._counts.items()},
            }

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON; `NixlKVConnectorStats(data)` gives the same back."""
        with self._lock:
            figures = {name: figure.as_dict() for name, figure in self._figures.items()}
            return {**figures, **self._counts}

    @property
    def data(self) -> dict[str, Any]:
        """What a worker sends to its scheduler: `as_dict`."""
        return self.as_dict()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy what was recorded; the lock, the journal and whom it feeds stay."""
        return type(self), (self.as_dict(),)

    def attach(self, journal: Journal | None) -> None:
        """Tell a journal of each record from now on; None for no journal."""
        with self._lock:
            self._journal = journal

    def feed(self, other: NixlKVConnectorStats) -> NixlKVConnectorStats:
        """Tell `other` of each record too, whatever becomes of these, and return these."""
        self._feeds = other
        return self

    def forget(self) -> None:
        """Forget everything, the lock and the journal too: in a forked child."""
        self._lock = threading.RLock()
        self._journal = None
        self.reset()

    @classmethod
    def from_distributions(
        cls, figures: Mapping[str, Distribution], counts: Mapping[str, int]
    ) -> NixlKVConnectorStats:
        """Make statistics of what someone else has counted.

        Args:
            figures: Distribution of some or all of `FIGURES`.
            counts: Number of some or all of `COUNTS`.
        """
        new = cls()
        new._figures |= figures
        new._counts |= counts
        return new

    def _read(self, data: Mapping[str, Any]) -> None:
        try:
            for name in FIGURES:
                self._figures[name] = _distribution(data.get(name, ()))
            for name in COUNTS:
                self._counts[name] = _count(data.get(name, 0))
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DocumentError(f"Statistics of transfers cannot be read: {error!r}.") from error


def _snapshot(stats: Any) -> NixlKVConnectorStats:
    """Return a copy that nobody else changes."""
    data = getattr(stats, "data", None)
    if not isinstance(data, Mapping):
        raise DocumentError(
            f"An object of type {type(stats).__name__} has no statistics of transfers: give "
            "NixlKVConnectorStats."
        )
    return NixlKVConnectorStats(data)


def _distribution(data: Any) -> Distribution:
    if isinstance(data, Mapping):
        return Distribution.from_dict(data)
    distribution = Distribution()
    for value in data:
        distribution.add(_number(value))
    return distribution


def _count(data: Any) -> int:
    """Return a count, which vLLM keeps as a list of ones."""
    number = sum(data) if isinstance(data, list) else data
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ValueError(f"{number!r} is not a count")
    return number


def _number(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is not a finite number of at least zero")
    return number


def _figure(res: Telemetry, attribute: str) -> float:
    value = getattr(res, attribute, None)
    try:
        # NIXL's bindings give timedeltas for durations in some versions.
        seconds = getattr(value, "total_seconds", None)
        return _number(seconds() * 1e6 if seconds is not None else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SettingError(
            f"A transfer's {attribute} is {value!r}: give NIXL's telemetry of a finished transfer."
        ) from error
