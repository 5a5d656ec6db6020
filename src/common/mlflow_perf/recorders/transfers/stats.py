"""`KVConnectorStats` and `NixlKVConnectorStats`: vLLM's recorders and figures, in bounded memory.

vLLM keeps a list of every transfer until the next log line. Here the lists hold the latest
transfers; the earlier ones are folded into a `Distribution` for each figure, within 1%.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import RLock
from mlflow_perf.errors import DocumentError, SettingError
from mlflow_perf.model.sketch import Distribution
from mlflow_perf.recorders.record_spool import RecordSpool
from mlflow_perf.recorders.spool import BLOB

FIGURES = ("transfer_duration", "post_duration", "bytes_transferred", "num_descriptors")
"""The figures of a successful transfer, by vLLM's names: seconds, seconds, bytes, a number."""

COUNTS = (
    "num_failed_transfers", "num_failed_notifications", "num_kv_expired_reqs",
    "num_failed_handshakes", "num_notifications_after_expiry",
)  # fmt: skip
"""The events that are counted, by vLLM's names. Spool files hold their places: append only."""

KIND = "kv"
"""First part of the names of the spool files."""

TRANSFER, COUNT = BLOB, BLOB + 1
"""Kinds of the records of a successful transfer and of an event."""

RECORD = struct.Struct("<dddd")
"""The bytes of a transfer: its `FIGURES`."""

_MIB = 2**20
# NIXL's name of each of `FIGURES`, and how many of its units make one of ours.
_TELEMETRY = (("xferDuration", 1e6), ("postDuration", 1e6), ("totalBytes", 1), ("descCount", 1))
_logger = get_logger(__name__)


class Telemetry(Protocol):
    """NIXL's figures of a finished transfer (`nixlXferTelemetry`); durations in µs."""

    xferDuration: float  # noqa: N815 - NIXL's name
    postDuration: float  # noqa: N815 - NIXL's name
    totalBytes: int  # noqa: N815 - NIXL's name
    descCount: int  # noqa: N815 - NIXL's name


@dataclass
class KVConnectorStats:
    """The interface of a connector's statistics over an interval, as vLLM has it."""

    data: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return `data`, which a worker sends to its scheduler."""
        return self.data

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
    """Statistics of NIXL transfers, with the recorders and figures of vLLM's class. Thread-safe.

    Args:
        data: What `as_dict` gave, or the `data` of vLLM's own class (lists by vLLM's names). A name
            that it lacks is in `unknown`, and the metrics of it are absent.

    Raises:
        DocumentError: If the data is neither.
    """

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        self._lock = RLock()
        self._spool: RecordSpool | None = None
        self._fed: NixlKVConnectorStats | None = None
        self.data = dict(data or {})

    @property
    def data(self) -> dict[str, list[float]]:
        """What was recorded, as vLLM's class has it: a list of figures by each of its names.

        Up to 1,000 transfers these are the lists themselves. Beyond that they are copies, in which
        each folded value is within 2%, and the sums are exact.
        """
        with self._lock:
            if not self._is_folded():
                return self._lists
            folded = {name: figure.values() for name, figure in self._folded.items()}
            folded |= {name: [1] * number for name, number in self._folded_counts.items()}
            return {name: folded[name] + latest for name, latest in self._lists.items()}

    @data.setter
    def data(self, data: dict[str, Any]) -> None:
        new: dict[str, Any] = {name: [] for name in (*FIGURES, *COUNTS)}
        folded = {name: Distribution() for name in FIGURES}
        counts = dict.fromkeys(COUNTS, 0)
        try:
            for name in new.keys() & data.keys():
                part = data[name]
                if name in FIGURES and isinstance(part, Mapping):
                    folded[name] = Distribution.from_dict(part)
                    if folded[name].is_exact:
                        new[name], folded[name] = folded[name].values(), Distribution()
                elif isinstance(part, (list, tuple)):
                    new[name] = [_check_figure(value) for value in part]
                elif name in COUNTS and type(part) is int and 0 <= part < 1 << 63:
                    counts[name] = part
                else:
                    raise ValueError(f"{name} is {part!r}")
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DocumentError(f"Statistics of transfers cannot be read: {error!r}.") from error
        if unknown := sorted(map(str, data.keys() - new.keys())):
            _logger.warning("Statistics of transfers are left out: %s.", ", ".join(unknown))
        with self._lock:
            self.unknown = new.keys() - data.keys() if data else set()
            self._lists: dict[str, list[float]] = new
            self._folded, self._folded_counts = folded, counts
            self._fold()

    def reset(self) -> None:
        """Forget everything."""
        self.data = {}

    def record_transfer(self, res: Telemetry | None) -> None:
        """Record a successful transfer.

        Args:
            res: NIXL's telemetry of it; None, of an agent without telemetry, records nothing.

        Raises:
            SettingError: If a figure of it is negative, not finite or not a number.
        """
        if res is None:
            return
        figures = []
        for name, divisor in _TELEMETRY:
            value = getattr(res, name, None)
            try:
                # NIXL's bindings give timedeltas for durations in some versions.
                seconds = getattr(value, "total_seconds", None)
                figure = _check_figure(value if seconds is None else seconds() * 1e6)
                figures.append(figure if divisor == 1 else figure / divisor)
            except (TypeError, ValueError, OverflowError) as error:
                raise SettingError(
                    f"A transfer's {name} is {value!r}: give NIXL's telemetry of a finished "
                    "transfer."
                ) from error
        self.record_figures(tuple(figures))

    def record_figures(self, figures: tuple[float, ...]) -> None:
        """Record a successful transfer by its `FIGURES`: seconds, seconds, bytes, descriptors."""
        with self._lock:
            for name, value in zip(FIGURES, figures, strict=True):
                self._lists[name].append(value)
            self._fold()
            if self._spool is not None:
                self._spool.write(TRANSFER, 0, RECORD.pack(*figures))
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

    def record_failed_handshake(self) -> None:
        """Record that a handshake with another agent failed."""
        self.record_count(3)

    def record_notification_after_expiry(self) -> None:
        """Record that a request's completion was notified after its blocks had expired."""
        self.record_count(4)

    def record_count(self, place: int) -> None:
        """Record an event by the place of its name in `COUNTS`."""
        with self._lock:
            self._lists[COUNTS[place]].append(1)
            self._fold()
            if self._spool is not None:
                self._spool.write(COUNT, place, b"")
        if self._fed is not None:
            self._fed.record_count(place)

    @property
    def num_successful_transfers(self) -> int:
        """How many transfers succeeded."""
        with self._lock:
            return self._folded[FIGURES[0]].count + len(self._lists[FIGURES[0]])

    def is_empty(self) -> bool:
        """Tell whether nothing was recorded; a failure is something."""
        with self._lock:
            return not self._is_folded() and not any(self._lists.values())

    def clone_and_reset(self) -> NixlKVConnectorStats:
        """Return everything recorded so far and begin again; no record in between is lost."""
        clone = NixlKVConnectorStats()
        with self._lock:
            clone._lists, clone._folded = self._lists, self._folded
            clone._folded_counts, clone.unknown = self._folded_counts, self.unknown
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
        if isinstance(other, NixlKVConnectorStats):
            data: Any = other.as_dict()
        else:
            data = getattr(other, "data", None)
        if not isinstance(data, Mapping):
            raise DocumentError(
                f"An object of type {type(other).__name__} has no statistics of transfers: give "
                "NixlKVConnectorStats."
            )
        taken = NixlKVConnectorStats(data)  # a copy that nobody else changes
        with self._lock:
            if not taken.is_empty():
                self.unknown = taken.unknown & (taken.unknown if self.is_empty() else self.unknown)
            for name, latest in taken._lists.items():
                self._lists[name] += latest
            for name, distribution in taken._folded.items():
                self._folded[name].merge(distribution)
            for name, count in taken._folded_counts.items():
                self._folded_counts[name] += count
            self._fold()
            if self._spool is not None:
                self._spool.write_all()
        # Statistics of `record_transfers` have counted for the session already.
        if self._fed is not None and getattr(other, "_fed", None) is None:
            self._fed.aggregate(taken)
        return self

    def reduce(self) -> dict[str, float]:
        """Return vLLM's figures, in ms and MiB, rounded; zeros without a transfer.

        As in vLLM, the failed transfers are those of transfers, handshakes and notifications.
        """
        with self._lock:
            exact, count = self.figures(), self._counts()
        return {
            "Num successful transfers": int(exact["num_successful"]),
            "Avg xfer time (ms)": round(exact["avg_xfer_time_ms"], 3),
            "P90 xfer time (ms)": round(exact["p90_xfer_time_ms"], 3),
            "Avg post time (ms)": round(exact["avg_post_time_ms"], 3),
            "P90 post time (ms)": round(exact["p90_post_time_ms"], 3),
            "Avg MB per transfer": round(exact["avg_mb_per_transfer"], 3),
            "Throughput (MB/s)": round(exact["throughput_mb_s"], 3),
            "Avg number of descriptors": round(exact["avg_num_descriptors"], 1),
            "Num failed transfers": count["num_failed_transfers"]
            + count["num_failed_handshakes"]
            + count["num_failed_notifications"],
            "Num KV expired reqs": count["num_kv_expired_reqs"],
            "Num notifs after expiry": count["num_notifications_after_expiry"],
        }

    def figures(self) -> dict[str, float]:
        """Return all figures by the names of their metrics, unrounded.

        Throughput is all bytes over the sum of the transfers' durations, as in vLLM: the rate of a
        single transfer, not of several that run at the same time.
        """
        with self._lock:
            xfer, post, size, descriptors = self._distributions().values()
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
                **{name: float(number) for name, number in self._counts().items()},
            }

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON, bounded; `NixlKVConnectorStats(data)` gives it back."""
        with self._lock:
            figures = self._distributions()
            parts = {name: figure.as_dict() for name, figure in figures.items()} | self._counts()
            return {name: part for name, part in parts.items() if name not in self.unknown}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy what was recorded, without the lock, the spool and the fed statistics."""
        return type(self), (self.as_dict(),)

    @property
    def source(self) -> str | None:
        """Name of the spool file that has these statistics; None if there is none."""
        return None if self._spool is None else self._spool.source

    def spool_to(self, folder: Path | None, name: str) -> None:
        """Write each record to a file in a spool folder from now on; None ends the writing.

        `name` is that of these statistics in the report.
        """
        with self._lock:
            if self._spool is not None:
                self._spool.close()
            if folder is not None:

                def snapshot() -> dict[str, Any]:
                    return {"name": name, "stats": self.as_dict()}

                self._spool = RecordSpool(folder, KIND, "Transfers", snapshot)

    def feed(self, other: NixlKVConnectorStats) -> NixlKVConnectorStats:
        """Record into `other` too from now on, and return these statistics."""
        self._fed = other
        return self

    def forget(self) -> None:
        """Forget everything, including the lock and the spool: in a forked child."""
        self._lock = RLock()
        self._spool = None
        self.reset()

    @classmethod
    def from_distributions(
        cls, figures: Mapping[str, Distribution], counts: Mapping[str, int]
    ) -> NixlKVConnectorStats:
        """Make statistics from some or all of `FIGURES` and `COUNTS`; the others are unknown."""
        new = cls()
        new.unknown = {*FIGURES, *COUNTS} - figures.keys() - counts.keys()
        new._folded |= figures
        new._folded_counts |= counts
        return new

    def _is_folded(self) -> bool:
        return any(figure.count for figure in self._folded.values()) or any(
            self._folded_counts.values()
        )

    def _fold(self) -> None:
        """Empty the lists into the distributions and counts when one has grown too long."""
        if max(map(len, self._lists.values())) <= Distribution.EXACT:
            return
        self._folded, self._folded_counts = self._distributions(), self._counts()
        self._lists = {name: [] for name in self._lists}

    def _distributions(self) -> dict[str, Distribution]:
        distributions = {name: figure.copy() for name, figure in self._folded.items()}
        for name, distribution in distributions.items():
            for value in self._lists[name]:
                distribution.add(value)
        return distributions

    def _counts(self) -> dict[str, int]:
        return {
            name: number + int(sum(self._lists[name]))
            for name, number in self._folded_counts.items()
        }


def _check_figure(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is not a finite number of at least zero")
    return value if type(value) is int else number
