"""The choice of readers: for each source the kernel's own files where they exist, else psutil."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.background import warn_left_out
from mlflow_perf.readers.base import Reader
from mlflow_perf.readers.disk import DiskIoReader, DiskUsageReader
from mlflow_perf.readers.energy import RaplReader
from mlflow_perf.readers.gpu.gpu import Gpu, GpuReader
from mlflow_perf.readers.gpu.gpu_processes import GpuProcesses
from mlflow_perf.readers.job import JobSources
from mlflow_perf.readers.memory import MemoryReader
from mlflow_perf.readers.network import NetworkReader
from mlflow_perf.readers.process.rank_environments import RankEnvironments
from mlflow_perf.readers.user_reader import UserReader

_log = get_logger(__name__)

ReaderFactory = Callable[[], Reader]
"""Makes a reader, or raises `SourceUnavailableError` where the source does not exist."""

_added: list[ReaderFactory] = []


def add_reader(factory: ReaderFactory) -> None:
    """Add a source of your own to every sampler that starts from now on.

    Args:
        factory: Makes the reader when a block starts; where the source does not exist it raises
            `SourceUnavailableError`. Adding the same factory again changes nothing.
    """
    if factory not in _added:
        _added.append(factory)


def open_readers(sources: Sequence[Sequence[ReaderFactory]]) -> list[Reader]:
    """Return a reader for each source that this machine has.

    Args:
        sources: For each source, the factories to try in turn. A factory raises
            `SourceUnavailableError` where its source does not exist; any other exception is warned
            of, and the source is left out.
    """
    readers = []
    for factories in sources:
        for make in factories:
            try:
                readers.append(make())
                break
            except SourceUnavailableError as error:
                _log.debug("Source not used: %s", error)
            except Exception as error:  # an odd machine costs one source, never the job
                if is_from_handler(error):
                    for reader in readers:
                        reader.close()
                    raise
                warn_left_out(error)
                break
    return readers


def _from_psutil(name: str) -> ReaderFactory:
    def make() -> Reader:
        # psutil alone costs 10 ms and 2 MB.
        from mlflow_perf.readers import psutil_readers

        reader: Reader = getattr(psutil_readers, name)()
        return reader

    return make


def _gpu_factories(
    root_pid: int | None, owns: Callable[[int], bool | None]
) -> tuple[ReaderFactory, ReaderFactory]:
    """Return the makers of GPU readers; a library is loaded only where its driver is."""
    neighbours, processes = RankEnvironments(root_pid), GpuProcesses(owns)

    def open_nvidia() -> Sequence[Gpu]:
        from mlflow_perf.readers.gpu import nvidia

        return nvidia.open_nvidia(others=neighbours.find_with_any, processes=processes)

    def open_amd() -> Sequence[Gpu]:
        from mlflow_perf.readers.gpu import amd

        return amd.open_amd(others=neighbours.find_with_any)

    return (
        lambda: GpuReader(open_nvidia, marks=("/dev/nvidiactl", "/dev/dxg")),
        lambda: GpuReader(open_amd, marks=("/dev/kfd",)),
    )


def default_readers(
    root_pid: int | None = None,
    *,
    carbon: str | None = None,
    ranks: Callable[[], Mapping[int, float | None]] | None = None,
    launcher_pid: int | None = None,
    mark: str = "",
) -> list[Reader]:
    """Return the readers of this node and of the job.

    Args:
        root_pid: The job's first process; the job is that process and its descendants. Default:
            this process.
        carbon: The country whose electricity to estimate emissions for, as three letters; default:
            that of `MLFLOW_PERF_CARBON`; without one there is no estimate.
        ranks: Returns the first processes of the job's other ranks on this node, as for
            `ProcessTreeReader`.
        launcher_pid: The process that started all ranks on this node, where `ranks` are given.
        mark: The variable that the job's processes were given, as for `ProcessTreeReader`.
    """
    if ranks is None:
        job = JobSources(root_pid, mark=mark)
    else:
        # A rank may be bound to one CPU; the launcher may use the CPUs of all ranks.
        cpus = frozenset(os.sched_getaffinity(launcher_pid or os.getppid()))
        job = JobSources(root_pid, cpus=cpus, ranks=ranks, mark=mark)

    def psutil_tree() -> Reader:
        from mlflow_perf.readers.process.tree_psutil import PsutilProcessTreeReader

        return PsutilProcessTreeReader(root_pid)

    def codecarbon() -> Reader:
        if not carbon and not os.environ.get("MLFLOW_PERF_CARBON", "").strip():
            raise SourceUnavailableError("No country is given to estimate emissions for.")
        from mlflow_perf.readers.carbon import make_carbon_reader

        return make_carbon_reader(carbon)

    # One row per source: the ways to read it, the best first.
    return open_readers(
        [
            (job.cpu, _from_psutil("PsutilCpuReader")),
            (MemoryReader, _from_psutil("PsutilMemoryReader")),
            (DiskUsageReader, _from_psutil("PsutilDiskUsageReader")),
            (DiskIoReader, _from_psutil("PsutilDiskIoReader")),
            (NetworkReader, _from_psutil("PsutilNetworkReader")),
            (job.limits_reader,),
            (job.cgroup,),
            (job.pressure,),
            (job.processes, psutil_tree),  # before the GPUs, which ask whose a process is
            _gpu_factories(root_pid if launcher_pid is None else launcher_pid, job.owns),
            (RaplReader,),
            (codecarbon,),
            *((partial(UserReader.from_factory, factory),) for factory in _added),
        ]
    )
