"""The growth of a Prometheus endpoint's metrics between its answers.

It works on the metric families of the official client's parser.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.model.sketch import Distribution
from mlflow_perf.recorders.transfers import NixlKVConnectorStats
from mlflow_perf.recorders.transfers.stats import COUNTS

_FORBIDDEN = re.compile(r"[^\w.\-]", re.ASCII)
_MAX_KEY = 150
_MAX_BUCKETS = 200
_MAX_ENGINES = 100
# A bucket's values are assumed to lie evenly between its bounds, as histogram_quantile() does.
_POINTS = 50
_NIXL_FIGURES = {
    "vllm:nixl_xfer_time_seconds": "transfer_duration",
    "vllm:nixl_post_time_seconds": "post_duration",
    "vllm:nixl_bytes_transferred": "bytes_transferred",
    "vllm:nixl_num_descriptors": "num_descriptors",
}
_NIXL_COUNTS = {f"vllm:nixl_{name}": name for name in COUNTS}
_FAILED = "vllm:nixl_num_failed_transfers"
_logger = get_logger(__name__)


class Growth:
    """How much a counter has grown since it was `base`.

    A counter that falls was reset, and has grown from zero since.
    """

    def __init__(self, base: float = 0.0) -> None:
        self.last = base
        self.total = 0.0

    def update(self, value: float) -> None:
        """Take the current value."""
        self.total += value - self.last if value >= self.last else value
        self.last = value

    def restart(self) -> None:
        """Count from zero: the counter was reset."""
        self.last = 0.0

    def figures(self) -> dict[str, float]:
        """Return the figures for the summary."""
        return {"total": self.total}


class Level:
    """The extremes and the mean of a gauge over the answers."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._min, self._max = math.inf, -math.inf

    def update(self, value: float) -> None:
        """Take the current value."""
        self._count += 1
        self._sum += value
        self._min, self._max = min(self._min, value), max(self._max, value)

    def figures(self) -> dict[str, float]:
        """Return the figures for the summary."""
        return {"min": self._min, "mean": self._sum / self._count, "max": self._max}


class Histogram:
    """How much the buckets, the count and the sum of a histogram or summary have grown."""

    def __init__(self) -> None:
        self._parts: dict[float | str, Growth] = {}

    def update(self, parts: Mapping[float | str, float], *, first: bool) -> None:
        """Take the current values.

        Args:
            parts: Cumulative counts by a bucket's upper bound, and `sum` and `count`.
            first: Whether the current values were there before the job.
        """
        count = self._parts.get("count")
        if count is not None and parts.get("count", math.inf) < count.last:
            # All parts were reset together, also those that have outgrown their last value.
            for growth in self._parts.values():
                growth.restart()
        for part, value in parts.items():
            if part not in self._parts:
                if len(self._parts) >= _MAX_BUCKETS:
                    continue
                self._parts[part] = Growth(value if first else 0.0)
            self._parts[part].update(value)

    @property
    def count(self) -> float:
        """Number of observed values."""
        if "count" in self._parts:
            return self._parts["count"].total
        return max((g.total for part, g in self._parts.items() if part != "sum"), default=0.0)

    def distribution(self) -> Distribution:
        """Return the observed values, estimated from the buckets, with the exact sum."""
        distribution = Distribution()
        lower, seen = 0.0, 0.0
        for upper in sorted(part for part in self._parts if not isinstance(part, str)):
            within = round(self._parts[upper].total - seen)
            seen = max(seen, self._parts[upper].total)
            width = 0.0 if math.isinf(upper) else upper - lower
            points = min(max(within, 0), _POINTS)
            for point in range(points):
                share = within * (point + 1) // points - within * point // points
                value = max(lower + width * (point + 0.5) / points, 0.0)
                distribution.add_bucket(value, share, value * share)
            lower = lower if math.isinf(upper) else max(upper, 0.0)
        if "sum" in self._parts:
            distribution.total = self._parts["sum"].total
        return distribution

    def figures(self) -> dict[str, float]:
        """Return the figures for the summary; without buckets there are no percentiles."""
        total = self._parts["sum"].total if "sum" in self._parts else 0.0
        figures = {"count": self.count, "sum": total}
        if self.count:
            figures["avg"] = total / self.count
            distribution = self.distribution()
            if distribution.count:
                names = ("p50", "p90", "p99")
                figures |= zip(names, distribution.percentiles((50, 90, 99)), strict=True)
        return figures


class Scraped:
    """The metrics of one endpoint during the job.

    Args:
        match: Patterns (`*`, `?`) of the metrics to keep; all if empty. vLLM's statistics of NIXL
            transfers are always kept.
        max_series: How many series are kept; a warning names one that is left out.
        prefix: First part of each key.
    """

    def __init__(
        self, match: Sequence[str] = (), *, max_series: int = 200, prefix: str = "scrape"
    ) -> None:
        self._match = tuple(match)
        self._max_series = max_series
        self._prefix = prefix
        self._keys: dict[tuple[str, _Labels], str] = {}
        self._kept: dict[str, Growth | Level | Histogram] = {}
        # By labels: one of several engines may be restarted, or go away, on its own.
        self._nixl: dict[str, dict[_Labels, Histogram]] = {
            name: {} for name in (*_NIXL_FIGURES, *_NIXL_COUNTS)
        }
        self._failed_is_sum = False
        self._is_full = False

    def update(self, families: Iterable[Metric], *, first: bool) -> dict[str, float]:
        """Take one answer.

        Args:
            families: Its metrics.
            first: Whether the current values were there before the job: counters then grow from
                them, otherwise from zero.

        Returns:
            The current values by key: gauges unchanged, counters and the counts of histograms by
            their growth.
        """
        present: dict[str, float] = {}
        for family in families:
            name = family.name.removesuffix("_total")
            if name in self._nixl:
                self._update_nixl(name, family, first=first)
            elif not self._match or any(fnmatch.fnmatchcase(name, p) for p in self._match):
                series = _group_by_labels(family)
                for labels, parts in series.items():
                    key = self._key(name, labels, series)
                    if key is not None:
                        present |= self._update_series(key, family.type, parts, first=first)
        return present

    def summary_metrics(self) -> dict[str, float]:
        """Return `<prefix>/<key>/…`: total of counters, min, mean and max of gauges, and so on."""
        return {
            f"{key}/{figure}": value
            for key, series in self._kept.items()
            for figure, value in series.figures().items()
        }

    def transfers(self) -> NixlKVConnectorStats:
        """Return vLLM's NIXL transfers during the job.

        They are empty where the endpoint has none; what it does not publish is unknown.
        """
        figures: dict[str, Distribution] = {}
        for name, figure in _NIXL_FIGURES.items():
            for series in self._nixl[name].values():  # of all engines together
                figures.setdefault(figure, Distribution()).merge(series.distribution())
        counts = {
            count: round(sum(series.count for series in self._nixl[name].values()))
            for name, count in _NIXL_COUNTS.items()
            if self._nixl[name]
        }
        if self._failed_is_sum:
            failed = ("num_failed_notifications", "num_failed_handshakes")
            others = sum(counts.get(name, 0) for name in failed)
            counts["num_failed_transfers"] = max(counts["num_failed_transfers"] - others, 0)
        return NixlKVConnectorStats.from_distributions(figures, counts)

    def _update_series(
        self, key: str, kind: str, parts: Mapping[float | str, float], *, first: bool
    ) -> dict[str, float]:
        """Take the current values of one series and return its current value, if it has one."""
        if kind in ("histogram", "summary"):
            histogram = self._kept.setdefault(key, Histogram())
            assert isinstance(histogram, Histogram)
            histogram.update(parts, first=first)
            return {key: histogram.count}
        if "value" not in parts:
            return {}
        value = parts["value"]
        if key not in self._kept:
            self._kept[key] = Growth(value if first else 0.0) if kind == "counter" else Level()
        kept = self._kept[key]
        assert not isinstance(kept, Histogram)
        kept.update(value)
        return {key: kept.total if isinstance(kept, Growth) else value}

    def _update_nixl(self, name: str, family: Metric, *, first: bool) -> None:
        """Take the series of each engine; engines beyond a bound are added up."""
        if name == _FAILED:
            # vLLM 0.33 counts failed handshakes and notifications here too, as its help text says.
            self._failed_is_sum = "notification" in family.documentation
        held = self._nixl[name]
        sums: dict[_Labels, dict[float | str, float]] = defaultdict(lambda: defaultdict(float))
        for labels, parts in _group_by_labels(family).items():
            place = labels if labels in held or len(held) < _MAX_ENGINES else ()
            held.setdefault(place, Histogram())
            for part, value in parts.items():
                sums[place]["count" if part == "value" else part] += value
        for place, values in sums.items():
            held[place].update(values, first=first)

    def _key(self, name: str, labels: _Labels, family: Mapping[_Labels, Any]) -> str | None:
        """Return the key of a series, which never changes; None where there are too many series."""
        place = name, labels
        if place in self._keys:
            return self._keys[place]
        if len(self._keys) >= self._max_series:
            if not self._is_full:
                self._is_full = True
                _logger.warning(
                    "An endpoint has more than %d series: the others, such as those of %s, are "
                    "left out. Choose with patterns: http://…/metrics#vllm:*,process_*",
                    self._max_series, name,
                )  # fmt: skip
            return None
        # Labels that all series of a metric share do not distinguish them.
        telling = [part for part in labels if not all(part in other for other in family)]
        text = ".".join([name, *(f"{label}_{value}" for label, value in telling)])
        clean = _FORBIDDEN.sub("_", text)
        if len(clean) > _MAX_KEY or f"{self._prefix}/{clean}" in self._kept:
            digest = hashlib.sha256(repr(place).encode()).hexdigest()[:8]
            clean = f"{clean[: _MAX_KEY - 9]}-{digest}"
        self._keys[place] = f"{self._prefix}/{clean}"
        return self._keys[place]


_Labels = tuple[tuple[str, str], ...]


def _group_by_labels(family: Metric) -> dict[_Labels, dict[float | str, float]]:
    """Return a metric's values by series: as `value`, or as the parts of a histogram."""
    series: dict[_Labels, dict[float | str, float]] = {}
    name = family.name
    for sample in family.samples:
        part: float | str | None = None
        if sample.name.endswith("_created") or "quantile" in sample.labels:
            continue
        if family.type not in ("histogram", "summary"):
            part = "value" if sample.name in (name, f"{name}_total") else None
        elif "le" in sample.labels:
            with contextlib.suppress(ValueError):
                part = float(sample.labels["le"])
        else:
            part = {f"{name}_sum": "sum", f"{name}_count": "count"}.get(sample.name)
        # The parser keeps whole numbers, and some of them no float can hold.
        value = float(str(sample.value))
        if part is not None and math.isfinite(value):
            labels = {k: v for k, v in sample.labels.items() if k not in ("le", "quantile")}
            series.setdefault(tuple(sorted(labels.items())), {})[part] = value
    return series
