"""The importers, and which of them takes a source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.importers.base import Importer, read_head
from mlflow_perf.spans.importers.chrome import ChromeTraceImporter
from mlflow_perf.spans.importers.dnpcsql import DnpcsqlImporter
from mlflow_perf.spans.importers.metric_lines import MetricLinesImporter
from mlflow_perf.spans.importers.mlflow_runs import MlflowRunImporter, MlflowStoreImporter
from mlflow_perf.spans.importers.monitoring import MonitoringImporter
from mlflow_perf.spans.importers.otlp import OtlpImporter
from mlflow_perf.spans.importers.parsl_run import ParslRunImporter
from mlflow_perf.spans.importers.perf_document import PerfDocumentImporter
from mlflow_perf.spans.importers.workqueue import WorkQueueImporter

# The first importer that recognises a source takes it.
IMPORTERS: tuple[Importer, ...] = (
    MlflowRunImporter(),
    MonitoringImporter(),
    MlflowStoreImporter(),
    DnpcsqlImporter(),
    ParslRunImporter(),
    WorkQueueImporter(),
    PerfDocumentImporter(),
    OtlpImporter(),
    ChromeTraceImporter(),
    MetricLinesImporter(),
)

_DEPTH = 6


def find_importer(source: Path) -> Importer | None:
    """Return the importer that recognises a source, or None.

    Raises:
        SpansError: The source cannot be opened.
    """
    try:
        head = read_head(source)
        return next((i for i in IMPORTERS if i.recognises(source, head)), None)
    except OSError as error:
        raise SpansError(f"{source} cannot be read: {error.strerror}.") from error


def expand(source: Path) -> Iterator[tuple[Importer, Path]]:
    """Yield the files and folders to import for a source, each with its importer.

    A folder's databases come before its logs: events that a database holds are not read from a log.

    Raises:
        SpansError: The source does not exist, or nothing in it is recognised.
    """
    if not source.exists() and ":/" not in str(source):
        raise SpansError(f"There is no file or folder {source} to import.")
    importer = find_importer(source)
    if importer is not None:
        yield importer, source
        return
    found = list(_search(source, _DEPTH)) if source.is_dir() else []
    if not found:
        kinds = ", ".join(i.name for i in IMPORTERS)
        raise SpansError(f"{source} is not of a kind that can be imported ({kinds}).")
    yield from found


def _search(folder: Path, depth: int) -> Iterator[tuple[Importer, Path]]:
    try:
        entries = sorted(folder.iterdir(), key=lambda e: (e.is_dir(), e.suffix != ".db", e.name))
    except OSError as error:
        raise SpansError(f"{folder} cannot be read: {error.strerror}.") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        importer = find_importer(entry)
        if importer is not None:
            yield importer, entry
        elif entry.is_dir() and not entry.is_symlink() and depth:
            yield from _search(entry, depth - 1)
