"""The readers: one per source, the only modules that look at the machine.

`default_readers` picks for each source the kernel's own files where they are, psutil elsewhere.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.background import warn_left_out
from mlflow_perf.readers.base import Reader
from mlflow_perf.readers.cgroup.limits import host_facts
from mlflow_perf.readers.disk import DiskIoReader, DiskUsageReader
from mlflow_perf.readers.energy import RaplReader
from mlflow_perf.readers.gpu.gpu import Gpu, GpuReader, OpenGpus
from mlflow_perf.readers.job import JobSources
from mlflow_perf.readers.memory import MemoryReader
from mlflow_perf.readers.network import NetworkReader
from mlflow_perf.readers.process.rank_environments import RankEnvironments
from mlflow_perf.readers.user_reader import UserReader

__all__ = ["Reader", "add_reader", "default_readers", "host_facts", "open_readers"]

_log = logging.getLogger(__name__)

ReaderFactory = Callable[[], Reader]


def _portable(name: str) -> Reader:
    # psutil is imported only where it is needed: it costs 10 ms and 2 MB.
    from mlflow_perf.readers import psutil_readers as portable

    reader: Reader = getattr(portable, name)()
    return reader


def _portable_tree(root_pid: int | None) -> Reader:
    from mlflow_perf.readers.process.tree_psutil import PsutilProcessTreeReader

    return PsutilProcessTreeReader(root_pid)


# One row per source: the ways to read it, the best first.
_NODE_SOURCES: tuple[tuple[ReaderFactory, ...], ...] = (
    (MemoryReader, lambda: _portable("PsutilMemoryReader")),
    (DiskUsageReader, lambda: _portable("PsutilDiskUsageReader")),
    (DiskIoReader, lambda: _portable("PsutilDiskIoReader")),
    (NetworkReader, lambda: _portable("PsutilNetworkReader")),
)


def _carbon(country: str | None) -> Reader:
    if not country and not os.environ.get("MLFLOW_PERF_CARBON", "").strip():
        raise SourceUnavailableError("No estimate of emissions was asked for.")
    from mlflow_perf.readers.carbon import carbon_reader

    return carbon_reader(country)


def _device_sources(
    root_pid: int | None, carbon: str | None
) -> tuple[tuple[ReaderFactory, ...], ...]:
    ranks = RankEnvironments(root_pid)

    def opener(module: str, name: str) -> OpenGpus:
        # A maker's module is loaded only where its driver is found, in the reader's own thread.
        def open_gpus() -> Sequence[Gpu]:
            found: Sequence[Gpu] = getattr(import_module(f"{__name__}.{module}"), name)(
                others=ranks.with_any_of
            )
            return found

        return open_gpus

    nvidia, amd = opener("gpu.nvidia", "open_nvidia"), opener("gpu.amd", "open_amd")
    return (
        (
            lambda: GpuReader(nvidia, marks=("/dev/nvidiactl", "/dev/dxg")),
            lambda: GpuReader(amd, marks=("/dev/kfd",)),
        ),
        (RaplReader,),
        (lambda: _carbon(carbon),),
    )


def open_readers(sources: Sequence[Sequence[ReaderFactory]]) -> list[Reader]:
    """Return a reader for each source that this machine has.

    Args:
        sources: For each source, the factories to try in turn; a factory says by
            `SourceUnavailableError` that it finds nothing here.
    """
    return [reader for ways in sources if (reader := _first_that_opens(ways)) is not None]


def _first_that_opens(ways: Sequence[ReaderFactory]) -> Reader | None:
    for make in ways:
        try:
            return make()
        except SourceUnavailableError as error:
            _log.debug("Source not used: %s", error)
        except Exception as error:  # noqa: BLE001 - an odd machine costs one source, never the job
            warn_left_out(error)
    return None


_added: list[ReaderFactory] = []


def add_reader(factory: ReaderFactory) -> None:
    """Let every sampler that starts from now on ask a source of your own too.

    Args:
        factory: Makes the reader when a block starts; where the source does not exist it raises
            `SourceUnavailableError`. A factory that was added already is not added again.
    """
    if factory not in _added:
        _added.append(factory)


def default_readers(root_pid: int | None = None, *, carbon: str | None = None) -> list[Reader]:
    """Return the readers of this node's and of the job's own figures.

    Args:
        root_pid: The process that is the job, with all that descend from it; default: this one.
        carbon: The country whose electricity to estimate emissions for, by its three letters;
            default: that of `MLFLOW_PERF_CARBON`, and without one no estimate.
    """
    job = JobSources(root_pid)
    cpu = (job.cpu, lambda: _portable("PsutilCpuReader"))
    return open_readers(
        (
            cpu,
            *_NODE_SOURCES,
            *((make,) for make in job.others),
            (job.tree, lambda: _portable_tree(root_pid)),
            *_device_sources(root_pid, carbon),
            *((partial(_added_reader, make),) for make in _added),
        )
    )


def _added_reader(make: ReaderFactory) -> Reader:
    try:
        return UserReader(make())
    except SystemExit as error:
        raise RuntimeError("the reader calls sys.exit") from error
