"""What several answers of a Prometheus endpoint say about the time between them.

Imports only errors, sketch and transfers. Works on families as the official client's parser gives
them: `name`, `type`, and `samples` with `name`, `labels` and `value`.
"""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from mlflow_perf.model.sketch import Distribution
from mlflow_perf.recorders.transfers import NixlKVConnectorStats

__all__ = ["Family", "Growth", "Histogram", "Level", "Scraped"]

_FORBIDDEN = re.compile(r"[^\w.\-]", re.ASCII)
_MAX_KEY = 150
_MAX_BUCKETS = 200
_MAX_ENGINES = 100
_POINTS = 50
# A bucket's values are taken to lie evenly between its bounds, as histogram_quantile() does.
_NIXL_FIGURES = {
    "vllm:nixl_xfer_time_seconds": "transfer_duration",
    "vllm:nixl_post_time_seconds": "post_duration",
    "vllm:nixl_bytes_transferred": "bytes_transferred",
    "vllm:nixl_num_descriptors": "num_descriptors",
}
_NIXL_COUNTS = {
    f"vllm:nixl_{name}": name
    for name in ("num_failed_transfers", "num_failed_notifications", "num_kv_expired_reqs")
}
_logger = logging.getLogger(__name__)


class Family(Protocol):
    """One metric of an answer, as `prometheus_client.Metric` is."""

    name: str
    type: str
    samples: Sequence[Any]


class Growth:
    """How much a counter has grown; one that falls was reset, and has grown from zero since.

    Args:
        base: Its value at the start of the job.

    Attributes:
        total: Growth since.
    """

    def __init__(self, base: float = 0.0) -> None:
        self._last = base
        self.total = 0.0

    def update(self, value: float) -> None:
        """Take the present value."""
        self.total += value - self._last if value >= self._last else value
        self._last = value

    def fell(self, value: float) -> bool:
        """Tell whether a present value says that the counter was reset."""
        return value < self._last

    def restart(self) -> None:
        """Count from zero: the counter was reset."""
        self._last = 0.0

    def figures(self) -> dict[str, float]:
        """Return the figures for the summary."""
        return {"total": self.total}


class Level:
    """The extremes and the mean of a gauge over the answers."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._least, self._greatest = math.inf, -math.inf

    def update(self, value: float) -> None:
        """Take the present value."""
        self._count += 1
        self._sum += value
        self._least, self._greatest = min(self._least, value), max(self._greatest, value)

    def figures(self) -> dict[str, float]:
        """Return the figures for the summary."""
        mean = self._sum / self._count
        return {"min": self._least, "mean": mean, "max": self._greatest}


class Histogram:
    """How much the buckets, the count and the sum of a histogram or summary have grown."""

    def __init__(self) -> None:
        self._parts: dict[float | str, Growth] = {}

    def update(self, parts: Mapping[float | str, float], *, first: bool) -> None:
        """Take the present values.

        Args:
            parts: By upper bound of a bucket, cumulative, and as `sum` and `count`.
            first: Whether what there is now was there before the job.
        """
        count = self._parts.get("count")
        if count is not None and count.fell(parts.get("count", math.inf)):
            # All parts begin anew together, those too that have grown past what they were.
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
        """How many values were observed."""
        if "count" in self._parts:
            return self._parts["count"].total
        return max((g.total for part, g in self._parts.items() if part != "sum"), default=0.0)

    def distribution(self) -> Distribution:
        """Return the observed values as far as the buckets tell them, with the exact sum."""
        distribution = Distribution()
        lower, seen = 0.0, 0.0
        for upper in sorted(part for part in self._parts if not isinstance(part, str)):
            within = round(self._parts[upper].total - seen)
            seen = max(seen, self._parts[upper].total)
            if within > 0:
                _spread(distribution, within, lower, lower if math.isinf(upper) else upper)
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


def _spread(distribution: Distribution, count: int, lower: float, upper: float) -> None:
    points = min(count, _POINTS)
    for point in range(points):
        share = count * (point + 1) // points - count * point // points
        value = lower + (upper - lower) * (point + 0.5) / points
        distribution.add_bucket(max(value, 0.0), share, value * share)


def _whole(series: Iterable[Histogram]) -> Distribution:
    """Return the values of all engines: a connector's statistics are of the whole."""
    whole = Distribution()
    for histogram in series:
        whole.merge(histogram.distribution())
    return whole


class Scraped:
    """All that is kept of one endpoint.

    Args:
        match: Patterns (`*`, `?`) of the metrics to keep; all if empty. vLLM's statistics of NIXL
            transfers are kept always.
        max_series: How many series are kept; a warning names how many are not.
        prefix: First part of each key.
    """

    def __init__(
        self, match: Sequence[str] = (), *, max_series: int = 200, prefix: str = "scrape"
    ) -> None:
        self._match = tuple(match)
        self._max_series = max_series
        self._prefix = prefix
        self._keys: dict[tuple[str, tuple[tuple[str, str], ...]], str | None] = {}
        self._kept: dict[str, Growth | Level | Histogram] = {}
        # By labels, for one of several engines may be restarted, or go away, on its own.
        self._nixl: dict[str, dict[_Labels, Histogram]] = {
            name: {} for name in (*_NIXL_FIGURES, *_NIXL_COUNTS)
        }
        self._left_out = 0

    def update(self, families: Iterable[Family], *, first: bool) -> dict[str, float]:
        """Take one answer.

        Args:
            families: Its metrics.
            first: Whether what there is now was there before the job: counters then grow from their
                present values, otherwise from zero.

        Returns:
            The present values by key: gauges as they are, counters and the counts of histograms as
            they have grown.
        """
        present: dict[str, float] = {}
        left_out = self._left_out
        for family in families:
            name = family.name.removesuffix("_total")
            if name in self._nixl:
                self._update_nixl(name, family, first=first)
            elif not self._match or any(fnmatch.fnmatchcase(name, p) for p in self._match):
                present |= self._update_family(name, family, first=first)
        if self._left_out and not left_out:
            _logger.warning(
                "An endpoint has more than %d series: the others, such as those of %s, are left "
                "out. Choose with patterns: http://…/metrics#vllm:*,process_*",
                self._max_series, next(n for (n, _), key in self._keys.items() if key is None),
            )  # fmt: skip
        return present

    def summary_metrics(self) -> dict[str, float]:
        """Return `<prefix>/<key>/…`: total of counters, min, mean and max of gauges, and so on."""
        return {
            f"{key}/{figure}": value
            for key, series in self._kept.items()
            for figure, value in series.figures().items()
        }

    def transfers(self) -> NixlKVConnectorStats:
        """Return vLLM's NIXL transfers during the job; empty where the endpoint has none."""
        return NixlKVConnectorStats.from_distributions(
            {figure: _whole(self._nixl[name].values()) for name, figure in _NIXL_FIGURES.items()},
            {
                count: round(sum(series.count for series in self._nixl[name].values()))
                for name, count in _NIXL_COUNTS.items()
            },
        )

    def _update_family(self, name: str, family: Family, *, first: bool) -> dict[str, float]:
        series = _by_labels(family)
        present: dict[str, float] = {}
        for labels, parts in series.items():
            key = self._key(name, labels, series)
            if key is None:
                continue
            if family.type in ("histogram", "summary"):
                kept = self._kept.setdefault(key, Histogram())
                assert isinstance(kept, Histogram)
                kept.update(parts, first=first)
                present[key] = kept.count
            elif "value" in parts:
                present[key] = self._update_one(key, family.type, parts["value"], first=first)
        return present

    def _update_one(self, key: str, kind: str, value: float, *, first: bool) -> float:
        if key not in self._kept:
            growing = kind == "counter"
            self._kept[key] = Growth(value if first else 0.0) if growing else Level()
        kept = self._kept[key]
        assert not isinstance(kept, Histogram)
        kept.update(value)
        return kept.total if isinstance(kept, Growth) else value

    def _update_nixl(self, name: str, family: Family, *, first: bool) -> None:
        """Take the series of each engine; those beyond a bound together."""
        held = self._nixl[name]
        sums: dict[_Labels, dict[float | str, float]] = defaultdict(lambda: defaultdict(float))
        for labels, parts in _by_labels(family).items():
            place = labels if labels in held or len(held) < _MAX_ENGINES else ()
            held.setdefault(place, Histogram())
            for part, value in parts.items():
                sums[place]["count" if part == "value" else part] += value
        for place, values in sums.items():
            held[place].update(values, first=first)

    def _key(self, name: str, labels: _Labels, family: Mapping[_Labels, Any]) -> str | None:
        """Return a series' key; None where there are too many. It stays as it was first made."""
        place = name, labels
        if place not in self._keys:
            if len(self._kept) + 1 > self._max_series or len(self._keys) > 50 * self._max_series:
                self._left_out += 1
                if len(self._keys) <= 50 * self._max_series:
                    self._keys[place] = None
                return None
            self._keys[place] = self._new_key(name, labels, family)
        return self._keys[place]

    def _new_key(self, name: str, labels: _Labels, family: Mapping[_Labels, Any]) -> str:
        # Labels that are the same in all series of a metric tell nothing apart.
        telling = [part for part in labels if not all(part in other for other in family)]
        text = ".".join([name, *(f"{label}_{value}" for label, value in telling)])
        clean = _FORBIDDEN.sub("_", text)
        if len(clean) > _MAX_KEY or f"{self._prefix}/{clean}" in self._kept:
            digest = hashlib.sha256(repr((name, labels)).encode()).hexdigest()[:8]
            clean = f"{clean[: _MAX_KEY - 9]}-{digest}"
        return f"{self._prefix}/{clean}"


_Labels = tuple[tuple[str, str], ...]


def _by_labels(family: Family) -> dict[_Labels, dict[float | str, float]]:
    """Return a metric's values by series: as `value`, or as the parts of a histogram."""
    series: dict[_Labels, dict[float | str, float]] = {}
    for sample in family.samples:
        labels = {k: v for k, v in sample.labels.items() if k not in ("le", "quantile")}
        part = _part(family, sample)
        # The parser gives whole numbers as they are, and some are beyond the floats.
        value = float(str(sample.value))
        if part is not None and math.isfinite(value):
            series.setdefault(tuple(sorted(labels.items())), {})[part] = value
    return series


def _part(family: Family, sample: Any) -> float | str | None:
    """Return which part of its series a sample is; None for what is of no use here."""
    name = family.name
    if sample.name.endswith("_created") or "quantile" in sample.labels:
        return None
    if family.type not in ("histogram", "summary"):
        return "value" if sample.name in (name, f"{name}_total") else None
    if "le" in sample.labels:
        try:
            return float(sample.labels["le"])
        except ValueError:
            return None
    return {f"{name}_sum": "sum", f"{name}_count": "count"}.get(sample.name)
