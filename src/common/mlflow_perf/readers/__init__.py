"""The readers: one per source, the only modules that look at the machine.

`default_readers` picks for each source the kernel's own files where they are, psutil elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.base import Reader
from mlflow_perf.readers.cpu import CpuReader
from mlflow_perf.readers.disk import DiskIoReader, DiskUsageReader
from mlflow_perf.readers.memory import MemoryReader
from mlflow_perf.readers.network import NetworkReader

__all__ = ["Reader", "default_readers", "open_readers"]

_log = logging.getLogger(__name__)

ReaderFactory = Callable[[], Reader]


def _portable(name: str) -> Reader:
    # psutil is imported only where it is needed: it costs 10 ms and 2 MB.
    from mlflow_perf.readers import portable

    reader: Reader = getattr(portable, name)()
    return reader


# One row per source: the ways to read it, the best first.
_NODE_SOURCES: tuple[tuple[ReaderFactory, ...], ...] = (
    (CpuReader, lambda: _portable("PsutilCpuReader")),
    (MemoryReader, lambda: _portable("PsutilMemoryReader")),
    (DiskUsageReader, lambda: _portable("PsutilDiskUsageReader")),
    (DiskIoReader, lambda: _portable("PsutilDiskIoReader")),
    (NetworkReader, lambda: _portable("PsutilNetworkReader")),
)


def open_readers(sources: tuple[tuple[ReaderFactory, ...], ...]) -> list[Reader]:
    """Return a reader for each source that this machine has.

    Args:
        sources: For each source, the factories to try in turn; a factory says by
            `SourceUnavailableError` that it finds nothing here.
    """
    return [reader for ways in sources if (reader := _first_that_opens(ways)) is not None]


def _first_that_opens(ways: tuple[ReaderFactory, ...]) -> Reader | None:
    for make in ways:
        try:
            return make()
        except SourceUnavailableError as error:
            _log.debug("Source not used: %s", error)
        except Exception:  # noqa: BLE001 - an odd machine costs one source, never the job
            _log.warning("A source cannot be read and is left out.", exc_info=True)
    return None


def default_readers() -> list[Reader]:
    """Return the readers of this node's own figures."""
    return open_readers(_NODE_SOURCES)
