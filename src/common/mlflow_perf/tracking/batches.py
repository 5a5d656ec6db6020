"""A node's figures and tags in the portions that a store takes. Imports the metric table.

MLflow's own stores take any number of metrics, a thousand at a time. Azure ML takes 50 names per
run, of which the job wants some too, and 250 values at a time:
https://learn.microsoft.com/azure/machine-learning/resource-limits-capacity
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_perf.model.document import to_json
from mlflow_perf.model.metrics import METRICS, RUN_METRICS

if TYPE_CHECKING:
    from mlflow.entities import Metric, RunTag

__all__ = ["StoreLimits", "batches", "clean_key", "limits_of", "metrics_of", "plain_text"]

_MAX_KEY = 250
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What a store takes.

    Attributes:
        names: Names of metrics that we may use in one run; None for any number.
        metrics: Values per request.
        tags: Tags per request.
        tag_chars: Characters of a tag's value.
    """

    names: int | None = None
    metrics: int = 1000
    tags: int = 100
    tag_chars: int = 5000


# Of Azure ML's 50 names six are the live curves', and eight the job's own.
_AZURE = StoreLimits(names=36, metrics=250, tags=50, tag_chars=1000)

# Where there is no room for all: the figures of every node, the whole run's, then the job's.
_FIRST = (
    *[metric.key for metric in METRICS[:21]],
    *[metric.key for metric in RUN_METRICS[:7]],
    "job_max_mem_mb",
    "job_cpu_avg_cores",
    "perf_overhead_pct",
    "gpu_avg_utilization_pct",
    "node_cost",
)
_RANK = {key: rank for rank, key in enumerate(_FIRST)}


def limits_of(tracking_uri: str) -> StoreLimits:
    """Return what the store at a tracking URI takes."""
    return _AZURE if tracking_uri.startswith("azureml:") else StoreLimits()


def clean_key(key: str) -> str:
    """Return a metric key that every MLflow store takes; one bad key spoils a whole batch."""
    text = re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)
    key = "/".join(part for part in text.split("/") if part.strip("."))
    return re.sub(r"^\.\.+", "", key)[:_MAX_KEY].rstrip("/. ") or "_"


def plain_text(text: str, most: int) -> str:
    """Return a name or a tag as every store takes it.

    PostgreSQL refuses the character NUL, every connection half a surrogate pair, as of a file's
    name that is no UTF-8, and a run's name beyond 250 characters.

    Args:
        text: The text.
        most: Characters to keep.
    """
    return text.replace("\0", "�").encode("utf-8", "replace").decode()[:most]


def metrics_of(summary: Mapping[str, float], prefix: str, step: int) -> list[Metric]:
    """Return a summary as MLflow's metrics, the most important first.

    Args:
        summary: Figures by key; those that are not finite are left out with one warning.
        prefix: Put before each key.
        step: The node's index; 0 for the whole run's.
    """
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    finite = {key: value for key, value in summary.items() if math.isfinite(value)}
    if len(finite) < len(summary):
        left_out = sorted(summary.keys() - finite.keys())
        _log.warning("Left out, because their values are not finite: %s.", to_json(left_out))
    keys = sorted(finite, key=lambda key: (_RANK.get(key, len(_RANK)), key))
    return [Metric(clean_key(prefix + k), float(finite[k]), now_ms, step) for k in keys]


def batches(
    node: list[Metric], run: list[Metric], tags: Mapping[str, str], limits: StoreLimits
) -> Iterator[tuple[list[Metric], list[RunTag]]]:
    """Yield what goes into each request: at least one, the tags in the first.

    Args:
        node: Metrics of this node, as `metrics_of` returns them.
        run: Metrics of the whole run.
        tags: Tags by key.
        limits: What the store takes.
    """
    from mlflow.entities import RunTag

    metrics = _fitting(node, run, limits.names)
    texts = [RunTag(key, plain_text(value, limits.tag_chars)) for key, value in tags.items()]
    for at in range(0, max(len(metrics), 1), limits.metrics):
        yield metrics[at : at + limits.metrics], texts[: limits.tags] if at == 0 else []


def _fitting(node: list[Metric], run: list[Metric], names: int | None) -> list[Any]:
    if names is None or len(node) + len(run) <= names:
        return node + run
    # All of a run's nodes choose alike: what every node has comes first, in one order.
    few = run[:7]
    _log.info("This store takes few names of metrics: the rest is in the run's JSON only.")
    return node[: names - len(few)] + few
