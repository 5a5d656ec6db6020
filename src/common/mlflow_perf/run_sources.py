"""What one recording reads: the node, the job and the endpoints that were asked for.

Imports readers; the scrape reader only where an endpoint is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlflow_perf.readers import Reader, default_readers

if TYPE_CHECKING:
    from mlflow_perf.integrations.prometheus import ScrapeReader

__all__ = ["readers_of", "scrapers_of", "without_columns"]


def without_columns(summary: dict[str, float], prefix: str) -> dict[str, float]:
    """Return a summary less what was made of an endpoint's columns, which tell no kinds."""
    heads = (f"avg_{prefix}", f"max_t_{prefix}", f"total_{prefix}")
    return {key: value for key, value in summary.items() if not key.startswith(heads)}


def readers_of(root_pid: int | None) -> list[Reader]:
    """Return the readers of this node and of the job that begins with a process.

    Args:
        root_pid: First process of the job; None for this one.
    """
    options = {} if root_pid is None else {"root_pid": root_pid}
    known = inspect.signature(default_readers).parameters
    return default_readers(**{name: value for name, value in options.items() if name in known})


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
