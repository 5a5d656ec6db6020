"""Split a node's metrics and tags into requests within the limits of a store.

MLflow's own stores take any number of metrics, a thousand per request. Azure ML takes 50 metric
names per run, some of which the job itself needs, and 250 values per request:
https://learn.microsoft.com/azure/machine-learning/resource-limits-capacity
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.core.json_io import to_json
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.model.metrics import METRICS, RUN_METRICS, RunMetric, find_metric

if TYPE_CHECKING:
    from mlflow.entities import Metric, RunTag

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The limits of a store.

    Attributes:
        names: Metric names that we may use in one run; None for any number.
        metrics: Values per request.
        tags: Tags per request.
        tag_chars: Characters of a tag's value.
    """

    names: int | None = None
    metrics: int = 1000
    tags: int = 100
    tag_chars: int = 5000


# Of Azure ML's 50 names, the live curves need six and the job's own metrics get eight.
_AZURE = StoreLimits(names=36, metrics=250, tags=50, tag_chars=1000)

_RUN_ESSENTIALS = [metric.key for metric in RUN_METRICS if metric.essential]
_ESSENTIALS = [*(metric.key for metric in METRICS if metric.essential), *_RUN_ESSENTIALS]
_OPERATION_FIGURES = ("count", "total_ms", "p95_ms")
_STEP_FIGURES = ("count", "p50_ms", "input_pct")
_RANK = {key: rank for rank, key in enumerate(_ESSENTIALS)}


def find_limits(tracking_uri: str) -> StoreLimits:
    """Return the limits of the store at a tracking URI."""
    return _AZURE if tracking_uri.startswith("azureml:") else StoreLimits()


def clean_text(text: str, max_chars: int) -> str:
    """Return a name or a tag that every store accepts.

    PostgreSQL refuses the character NUL. No connection takes half a surrogate pair, which a file
    name that is not UTF-8 contains. A run's name has at most 250 characters.

    Args:
        text: The text.
        max_chars: Number of characters to keep.
    """
    return text.replace("\0", "�").encode("utf-8", "replace").decode()[:max_chars]


def clean_tags(tags: Mapping[str, str], tracking_uri: str) -> dict[str, str]:
    """Return tags that the store at a tracking URI accepts: see `clean_text`."""
    most = find_limits(tracking_uri).tag_chars
    return {key: clean_text(value, most) for key, value in tags.items()}


def select_metrics(summary: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a node that MLflow gets by default; the document has all.

    An operation that ran once has one figure, any other three, and so has a loop of steps. What the
    user asked for, such as readers of their own and scraped endpoints, is kept.
    """
    chosen = {}
    for key, value in summary.items():
        row = find_metric(key)
        name, _, figure = key.removeprefix("ops/").rpartition("/")
        if row is not None:
            is_wanted = isinstance(row, RunMetric) or row.by_default
        elif key.startswith("steps/"):
            is_wanted = figure in _STEP_FIGURES
        elif not name or not key.startswith("ops/"):
            is_wanted = True
        elif f"ops/{name}/total_ms" not in summary:
            is_wanted = True  # a counter
        else:
            is_once = summary.get(f"ops/{name}/count") == 1
            is_wanted = figure == "total_ms" if is_once else figure in _OPERATION_FIGURES
        if is_wanted:
            chosen[key] = value
    return chosen


def select_run_metrics(summary: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a whole run that MLflow gets by default.

    The job's figures of a run of one node are those of the node, under nearly the same names.
    """
    if summary.get("run_node_count") != 1:
        return dict(summary)
    return {key: value for key, value in summary.items() if not key.startswith("run_job_")}


def rank_metrics(summary: Mapping[str, float], prefix: str, step: int) -> list[Metric]:
    """Return a summary as MLflow's metrics, the most important first.

    Args:
        summary: Metric key → value. Values that are not finite are left out with one warning.
        prefix: Put before each key.
        step: The node's index; 0 for the metrics of the whole run.
    """
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    finite = {key: value for key, value in summary.items() if math.isfinite(value)}
    if len(finite) < len(summary):
        left_out = sorted(summary.keys() - finite.keys())
        _log.warning("Left out, because their values are not finite: %s.", to_json(left_out))
    keys = sorted(finite, key=lambda key: (_RANK.get(key, len(_RANK)), key))
    return [Metric(clean_metric_key(prefix + k), float(finite[k]), now_ms, step) for k in keys]


def split_batches(
    node: list[Metric], run: list[Metric], tags: Mapping[str, str], limits: StoreLimits
) -> Iterator[tuple[list[Metric], list[RunTag]]]:
    """Yield the metrics and tags of each request: at least one, with all tags in the first.

    Args:
        node: Metrics of this node, as `rank_metrics` returns them.
        run: Metrics of the whole run, as `rank_metrics` returns them.
        tags: Tag key → text.
        limits: The limits of the store.
    """
    from mlflow.entities import RunTag

    if limits.names is not None and len(node) + len(run) > limits.names:
        # Every node of the run chooses alike, because the essential metrics come first.
        run = run[: len(_RUN_ESSENTIALS)]
        node = node[: limits.names - len(run)]
        _log.info("This store takes few names of metrics: the rest is in the run's JSON only.")
    metrics = node + run
    texts = [RunTag(key, clean_text(value, limits.tag_chars)) for key, value in tags.items()]
    for at in range(0, max(len(metrics), 1), limits.metrics):
        yield metrics[at : at + limits.metrics], texts[: limits.tags] if at == 0 else []
