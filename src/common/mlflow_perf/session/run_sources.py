"""The readers of one recording, and the listeners that get its reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.settings import Settings
from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.node.exit_cause import has_own_procfs
from mlflow_perf.node.place import Node, detect
from mlflow_perf.readers import Reader, default_readers
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.rank_commands import RankCommands

if TYPE_CHECKING:
    from mlflow_perf.integrations.prometheus import ScrapeReader
    from mlflow_perf.recorders.transfers import NixlKVConnectorStats

_log = get_logger(__name__)


class ReportListener(Protocol):
    """Gets each report, in the sampling thread, and must not block it."""

    def __call__(self, report: Mapping[str, float]) -> None:
        """Take one report."""
        ...

    def close(self) -> None:
        """End, because no more reports come."""
        ...


def open_exporters(settings: Settings, *, component: str, node: Node) -> list[ReportListener]:
    """Return the listeners that hand the running job's figures to other systems.

    Args:
        settings: `textfile` and `opentelemetry` say which.
        component: The component, for labels.
        node: The node, for labels.

    Raises:
        SettingError: When the text file cannot be used.
        MissingDependencyError: When OpenTelemetry is asked for but not installed.
    """
    labels = {"component": component, "node": str(node.index)}
    exporters: list[ReportListener] = []
    if settings.textfile:
        from mlflow_perf.integrations.textfile import TextfileExporter

        exporters.append(TextfileExporter(settings.textfile, labels))
    if settings.opentelemetry:
        from mlflow_perf.integrations.opentelemetry import OpenTelemetryExporter

        exporters.append(OpenTelemetryExporter(labels))
    return exporters


def open_job_readers(
    root_pid: int | None,
    node: Node,
    *,
    carbon: str | None = None,
    commands: RankCommands | None = None,
    above: RankCommands | None = None,
) -> list[Reader]:
    """Return the readers of this node and of the job that begins with a process.

    Args:
        root_pid: First process of the job; default: this process, or the launcher's process above
            all ranks of this node where there are several.
        node: This process's place in its job.
        carbon: Country to estimate emissions for.
        commands: The commands that the ranks on this node wrap, where this process wraps one.
        above: The commands that this process and the other ranks of its job run in, if any.
    """
    launcher_pid = os.getppid()
    if root_pid is None and above is not None and (own := above.read_own()) is not None:
        # The wrappers stand between the launcher and the ranks, and are not the job's.
        root_pid, commands, launcher_pid = own.pid, above, own.launcher_pid or launcher_pid
    several = node.world_size > node.count and not node.pool
    if root_pid is None and several and os.getppid() > 1:
        root_pid = os.getppid()
    if root_pid is not None and not has_own_procfs():
        _log.warning(
            "The job's processes are not measured, only the node is: /proc is that of another PID "
            "namespace (unshare --mount-proc makes the right one)."
        )
    # All processes of the job have it, and none of another job.
    folder = os.environ.get(spool.VARIABLE)
    mark = f"{spool.VARIABLE}={folder}" if folder else ""
    if commands is None:
        return default_readers(root_pid=root_pid, carbon=carbon, mark=mark)
    return default_readers(
        root_pid=root_pid,
        carbon=carbon,
        ranks=commands.cpu_by_pid,
        launcher_pid=launcher_pid,
        mark=mark,
    )


def open_scrapers(urls: Sequence[str], interval: float) -> list[ScrapeReader]:
    """Return a reader for each Prometheus endpoint.

    Args:
        urls: Addresses of the endpoints.
        interval: Seconds between two readings.

    Raises:
        SettingError: When an address is wrong.
        MissingDependencyError: When prometheus_client is not installed.
    """
    if not urls:
        return []
    from mlflow_perf.integrations.prometheus import scrape_readers

    return scrape_readers(urls, interval=interval)


def begin_scraping(scrapers: Iterable[ScrapeReader]) -> None:
    """Ask all endpoints for the first time, at once: their counters count from these answers.

    An endpoint that takes more than two seconds is not waited for.
    """
    with suppress(RuntimeError):  # no room for one more thread: the job goes on without them
        for scraper in scrapers:
            scraper.begin()
    for scraper in scrapers:
        scraper.wait()


def replace_scraped(
    summary: Mapping[str, float], scrapers: Iterable[ScrapeReader]
) -> dict[str, float]:
    """Return a summary with the endpoints' own figures; columns do not tell counters from gauges.

    Args:
        summary: Metric key → value.
        scrapers: The readers of the endpoints.
    """
    found = dict(summary)
    for scraper in scrapers:
        heads = tuple(f"{head}_{scraper.name}" for head in ("avg", "max_t", "total"))
        found = {key: value for key, value in found.items() if not key.startswith(heads)}
        found.update(scraper.summary_metrics())
    return found


def add_scraped(
    transfers: dict[str, NixlKVConnectorStats], scrapers: Iterable[ScrapeReader]
) -> None:
    """Add the transfers that the endpoints counted to those of this job, as connector `nixl`."""
    for scraper in scrapers:
        stats = scraper.transfers()
        if not stats.is_empty():
            transfers.setdefault("nixl", type(stats)()).aggregate(stats)


def detect_node(index: int | None) -> Node:
    """Return this process's place in its job.

    Args:
        index: Index of the node; default: as the launcher says.

    Raises:
        SettingError: When one of our own variables is wrong.
    """
    environ = dict(os.environ)
    if index is not None:
        environ["MLFLOW_PERF_NODE"] = str(index)
    try:
        return detect(environ)
    except MlflowPerfError:
        raise
    except Exception as error:  # an odd launcher costs the node's place, not the job
        if is_from_handler(error):
            raise
        _log.warning("The node's place in its job is unknown.", exc_info=True)
        return detect({})
