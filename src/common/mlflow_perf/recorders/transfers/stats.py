"""`KVConnectorStats` and `NixlKVConnectorStats`: vLLM's recorders and figures, in bounded memory.

vLLM keeps a list of every transfer until the next log line. Here each figure is a `Distribution`:
exact while the transfers are few, within 1% after that.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from mlflow_perf.errors import DocumentError, SettingError
from mlflow_perf.model.sketch import Distribution
from mlflow_perf.recorders.transfers.transfer_spool import TransferSpool

__all__ = ["COUNTS", "FIGURES", "KVConnectorStats", "NixlKVConnectorStats", "Telemetry"]

FIGURES = ("transfer_duration", "post_duration", "bytes_transferred", "num_descriptors")
"""The figures of a successful transfer, by vLLM's names: seconds, seconds, bytes, a number."""

COUNTS = ("num_failed_transfers", "num_failed_notifications", "num_kv_expired_reqs")
"""The events that are counted, by vLLM's names."""

_MIB = 2**20
# NIXL's name of each of `FIGURES`, and how many of its units make one of ours.
_TELEMETRY = (("xferDuration", 1e6), ("postDuration", 1e6), ("totalBytes", 1), ("descCount", 1))


class Telemetry(Protocol):
    """NIXL's figures of a finished transfer (`nixlXferTelemetry`).

    Attributes:
        xferDuration: Microseconds from the post to the end.
        postDuration: Microseconds of the post.
        totalBytes: Bytes transferred.
        descCount: Number of descriptors.
    """

    xferDuration: float  # noqa: N815 - NIXL's name
    postDuration: float  # noqa: N815 - NIXL's name
    totalBytes: int  # noqa: N815 - NIXL's name
    descCount: int  # noqa: N815 - NIXL's name


class KVConnectorStats:
    """The interface of a connector's statistics over an interval."""

    def reset(self) -> None:
        """Forget everything."""
        raise NotImplementedError

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add the statistics of `other`, and return these statistics."""
        raise NotImplementedError

    def reduce(self) -> dict[str, float]:
        """Return the figures for a log line."""
        raise NotImplementedError

    def is_empty(self) -> bool:
        """Return whether nothing was recorded."""
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
        self._spool: TransferSpool | None = None
        self._fed: NixlKVConnectorStats | None = None
        self.reset()
        try:
            for name in FIGURES if data else ():
                figure = (data or {}).get(name, ())
                if isinstance(figure, Mapping):
                    self._figures[name] = Distribution.from_dict(figure)
                    continue
                for value in figure:
                    self._figures[name].add(_check_figure(value))
            for name in COUNTS if data else ():
                count = (data or {}).get(name, 0)
                number = sum(count) if isinstance(count, list) else count  # vLLM: a list of ones
                if type(number) is not int or not 0 <= number < 1 << 63:
                    raise ValueError(f"{number!r} is not a count")
                self._counts[name] = number
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DocumentError(f"Statistics of transfers cannot be read: {error!r}.") from error

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
        figures = []
        for name, divisor in _TELEMETRY:
            value = getattr(res, name, None)
            try:
                # NIXL's bindings give timedeltas for durations in some versions.
                seconds = getattr(value, "total_seconds", None)
                figures.append(
                    _check_figure(value if seconds is None else seconds() * 1e6) / divisor
                )
            except (TypeError, ValueError, OverflowError) as error:
                raise SettingError(
                    f"A transfer's {name} is {value!r}: give NIXL's telemetry of a finished "
                    "transfer."
                ) from error
        self.record_figures(tuple(figures))

    def record_figures(self, figures: tuple[float, ...]) -> None:
        """Record a successful transfer by its `FIGURES`: seconds, seconds, bytes, descriptors."""
        with self._lock:
            for distribution, value in zip(self._figures.values(), figures, strict=True):
                distribution.add(value)
            if self._spool is not None:
                self._spool.add_transfer(figures)
        if self._fed is not None:
            self._fed.record_figures(figures)

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
            if self._spool is not None:
                self._spool.add_count(place)
        if self._fed is not None:
            self._fed.record_count(place)

    @property
    def num_successful_transfers(self) -> int:
        """How many transfers succeeded."""
        return self._figures["transfer_duration"].count

    def is_empty(self) -> bool:
        """Tell whether nothing was recorded; a failure is something."""
        with self._lock:
            return not self.num_successful_transfers and not any(self._counts.values())

    def clone_and_reset(self) -> NixlKVConnectorStats:
        """Return everything recorded so far and begin again; no record in between is lost."""
        clone = NixlKVConnectorStats()
        with self._lock:
            clone._figures, clone._counts = self._figures, self._counts
            self.reset()
        return clone

    def aggregate(self, other: KVConnectorStats) -> NixlKVConnectorStats:
        """Add the statistics of `other`.

        Args:
            other: Statistics of this class, or of vLLM's own class.

        Returns:
            These statistics.

        Raises:
            DocumentError: If `other` is neither.
        """
        data = getattr(other, "data", None)
        if not isinstance(data, Mapping):
            raise DocumentError(
                f"An object of type {type(other).__name__} has no statistics of transfers: give "
                "NixlKVConnectorStats."
            )
        taken = NixlKVConnectorStats(data)  # a copy that nobody else changes
        with self._lock:
            for name, distribution in taken._figures.items():
                self._figures[name].merge(distribution)
            for name, count in taken._counts.items():
                self._counts[name] += count
            if self._spool is not None:
                self._spool.write_all()
        # Statistics of `record_transfers` have counted for the session already.
        if self._fed is not None and getattr(other, "_fed", None) is None:
            self._fed.aggregate(taken)
        return self

    def reduce(self) -> dict[str, float]:
        """Return vLLM's figures, in ms and MiB, rounded; zeros without a transfer."""
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

        Throughput is all bytes over the sum of the transfers' durations, as in vLLM: the rate of a
        single transfer, not of several that run at the same time.
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
        """The data that a worker sends to its scheduler: `as_dict`."""
        return self.as_dict()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy what was recorded, without the lock, the spool and the fed statistics."""
        return type(self), (self.as_dict(),)

    @property
    def source(self) -> str | None:
        """Name of the spool file that has these statistics; None if there is none."""
        return None if self._spool is None else self._spool.source

    def spool_to(self, folder: Path | None, name: str) -> None:
        """Write each record to a file in a spool folder from now on.

        Args:
            folder: The folder; None ends the writing.
            name: Name of these statistics in the report.
        """
        with self._lock:
            if self._spool is not None:
                self._spool.close()
            if folder is not None:
                self._spool = TransferSpool(folder, name, self.as_dict)

    def feed(self, other: NixlKVConnectorStats) -> NixlKVConnectorStats:
        """Record into `other` too from now on, and return these statistics."""
        self._fed = other
        return self

    def forget(self) -> None:
        """Forget everything, including the lock and the spool: in a forked child."""
        self._lock = threading.RLock()
        self._spool = None
        self.reset()

    @classmethod
    def from_distributions(
        cls, figures: Mapping[str, Distribution], counts: Mapping[str, int]
    ) -> NixlKVConnectorStats:
        """Make statistics from distributions and counts taken elsewhere.

        Args:
            figures: Distributions of some or all of `FIGURES`.
            counts: Numbers of some or all of `COUNTS`.
        """
        new = cls()
        new._figures |= figures
        new._counts |= counts
        return new


def _check_figure(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is not a finite number of at least zero")
    return number
