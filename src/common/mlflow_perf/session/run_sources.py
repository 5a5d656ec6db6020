"""What one recording reads, and who else is told of each report.

Imports readers; the integrations only where they are asked for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.node import place as nodes
from mlflow_perf.readers import Reader, default_readers

if TYPE_CHECKING:
    from mlflow_perf.integrations.prometheus import ScrapeReader

__all__ = ["Listener", "exporters_of", "node_of", "readers_of", "scrapers_of", "without_columns"]


_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Is told of each report, in the sampling thread, and must not block it."""

    def __call__(self, report: Mapping[str, float]) -> None:
        """Take one report."""
        ...

    def close(self) -> None:
        """End: no report comes any more."""
        ...


def exporters_of(options: Mapping[str, Any], *, component: str, node: int) -> list[Listener]:
    """Return who hands the running job's figures to other systems.

    Args:
        options: The settings `textfile` and `opentelemetry`.
        component: The component, for labels.
        node: The node's index, for labels.

    Raises:
        SettingError: When the text file cannot be one.
        MissingDependencyError: When OpenTelemetry is asked for and not installed.
    """
    labels = {"component": component, "node": str(node)}
    found: list[Listener] = []
    if options["textfile"]:
        from mlflow_perf.integrations.textfile import TextfileExporter

        found.append(TextfileExporter(options["textfile"], labels))
    if options["opentelemetry"]:
        from mlflow_perf.integrations.opentelemetry import OpenTelemetryExporter

        found.append(OpenTelemetryExporter(labels))
    return found


def without_columns(summary: dict[str, float], prefix: str) -> dict[str, float]:
    """Return a summary less what was made of an endpoint's columns, which tell no kinds."""
    heads = (f"avg_{prefix}", f"max_t_{prefix}", f"total_{prefix}")
    return {key: value for key, value in summary.items() if not key.startswith(heads)}


def readers_of(
    root_pid: int | None, node: nodes.Node, *, carbon: str | None = None
) -> list[Reader]:
    """Return the readers of this node and of the job that begins with a process.

    Args:
        root_pid: First process of the job; None for this one, or for the launcher's process above
            all ranks of this node where there are several.
        node: This process's place in its job.
        carbon: Country to estimate emissions for.
    """
    several = node.world_size > node.count and not node.pool
    if root_pid is None and several and os.getppid() > 1:
        root_pid = os.getppid()
    return default_readers(root_pid=root_pid, carbon=carbon)


def scrapers_of(urls: Sequence[str], interval: float) -> list[ScrapeReader]:
    """Return a reader for each Prometheus endpoint.

    Args:
        urls: Their addresses.
        interval: Seconds between two readings.

    Raises:
        SettingError: When an address is wrong.
        MissingDependencyError: When prometheus_client is not installed.
    """
    if not urls:
        return []
    from mlflow_perf.integrations.prometheus import scrape_readers

    return scrape_readers(urls, interval=interval)


def node_of(index: int | None) -> nodes.Node:
    """Return this process's place in its job; an index that is given goes before the launcher's.

    Raises:
        SettingError: When one of our own variables is wrong.
    """
    environ = dict(os.environ)
    if index is not None:
        environ["MLFLOW_PERF_NODE"] = str(index)
    try:
        return nodes.detect(environ)
    except MlflowPerfError:
        raise
    except Exception:  # noqa: BLE001 - an odd launcher costs the node's place, not the job
        _log.warning("The node's place in its job could not be told.", exc_info=True)
        return nodes.detect({})
