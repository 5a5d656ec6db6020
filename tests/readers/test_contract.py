"""The rules for every reader, whatever its source: one test for all readers."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.readers import trees
from tests.readers.gpu.stand_ins import FakeNvml
from tests.readers.trees import cgroup_reader

from mlflow_perf import readers
from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers import Reader
from mlflow_perf.readers.carbon import CarbonReader
from mlflow_perf.readers.cgroup.cgroup import CgroupReader
from mlflow_perf.readers.cgroup.limits import LimitsReader, owned
from mlflow_perf.readers.cgroup.pressure import PressureReader
from mlflow_perf.readers.cgroup.rebuilt import RebuiltReader
from mlflow_perf.readers.cpu.cpu import CpuReader
from mlflow_perf.readers.cpu.cpu_share import CpuShareReader
from mlflow_perf.readers.disk import DiskIoReader, DiskUsageReader
from mlflow_perf.readers.energy import RaplReader
from mlflow_perf.readers.gpu.gpu import GpuReader
from mlflow_perf.readers.gpu.nvidia import open_nvidia
from mlflow_perf.readers.job import JobSources
from mlflow_perf.readers.memory import MemoryReader
from mlflow_perf.readers.network import NetworkReader
from mlflow_perf.readers.process.tree import ProcessTreeReader
from mlflow_perf.readers.process.tree_psutil import PsutilProcessTreeReader
from mlflow_perf.readers.psutil_readers import (
    PsutilCpuReader,
    PsutilDiskIoReader,
    PsutilDiskUsageReader,
    PsutilMemoryReader,
    PsutilNetworkReader,
)
from mlflow_perf.readers.user_reader import UserReader
from mlflow_perf.records import Kind
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
from mlflow_perf.testing import FakeReader


class Tracker:
    """A stand-in for CodeCarbon's tracker."""

    _total_energy = SimpleNamespace(kWh=0.002)

    def flush(self) -> float:
        return 0.001

    def stop(self) -> None:
        pass


def make_carbon(_: Path) -> Reader:
    """Return the reader of emissions, over a stand-in for CodeCarbon."""
    return CarbonReader("FRA", lambda _: Tracker())


def make_gpu(_: Path) -> Reader:
    """Return the reader of GPUs, over a stand-in for NVIDIA's library."""
    return GpuReader(lambda: open_nvidia(FakeNvml(), {"CUDA_VISIBLE_DEVICES": "0,1"}))


def make_cgroup(root: Path) -> Reader:
    """Return the reader of a recorded container's control group."""
    return cgroup_reader(root, trees.docker_v2(root))


def make_rebuilt(root: Path) -> Reader:
    """Return the same, as the job has it."""
    proc = trees.docker_v2(root)
    return JobSources(proc=proc, root=root, environ={}, cpus=trees.EIGHT).cgroup()


def make_rapl(root: Path) -> Reader:
    """Return the reader of a recorded energy counter."""
    files = {"name": "package-0", "energy_uj": "5", "max_energy_range_uj": "9"}
    trees.put_all(root / "class/powercap/intel-rapl:0", files)
    return RaplReader(root)


READERS: dict[type, Callable[[Path], Reader]] = {
    CpuReader: lambda _: CpuReader(),
    CpuShareReader: lambda _: CpuShareReader(CpuReader(), cores=0.5, used=ProcessTreeReader()),
    MemoryReader: lambda _: MemoryReader(),
    DiskIoReader: lambda _: DiskIoReader(),
    DiskUsageReader: lambda _: DiskUsageReader(),
    NetworkReader: lambda _: NetworkReader(),
    PsutilCpuReader: lambda _: PsutilCpuReader(),
    PsutilMemoryReader: lambda _: PsutilMemoryReader(),
    PsutilDiskIoReader: lambda _: PsutilDiskIoReader(),
    PsutilDiskUsageReader: lambda _: PsutilDiskUsageReader(),
    PsutilNetworkReader: lambda _: PsutilNetworkReader(),
    ProcessTreeReader: lambda _: ProcessTreeReader(),
    PsutilProcessTreeReader: lambda _: PsutilProcessTreeReader(),
    LimitsReader: lambda _: LimitsReader(owned),
    PressureReader: lambda _: PressureReader(),
    CgroupReader: make_cgroup,
    RebuiltReader: make_rebuilt,
    RaplReader: make_rapl,
    GpuReader: make_gpu,
    CarbonReader: make_carbon,
    UserReader: lambda _: UserReader(FakeReader([{"done": 5.0}], counters=["done"])),
}


def test_every_reader_of_the_package_is_tested() -> None:
    """A class of the package that reads and has columns is in the table above."""
    found = set()
    for module in pkgutil.walk_packages(readers.__path__, "mlflow_perf.readers."):
        for value in vars(import_module(module.name)).values():
            own = isinstance(value, type) and value.__module__ == module.name
            if own and value.__name__.endswith("Reader") and not value.__name__.startswith("_"):
                found.add(value)
    assert found - {Reader} == READERS.keys()


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.__name__)
def test_reader_contract(kind: type, tmp_path: Path) -> None:
    """A reader puts finite numbers under its own columns; its counters never fall."""
    try:
        reader = READERS[kind](tmp_path)
    except SourceUnavailableError as error:
        pytest.skip(str(error))
    assert type(reader) is kind
    if isinstance(reader, (GpuReader, CarbonReader)):
        reader._source._patience_sec = 10.0
    assert isinstance(reader, Reader)
    before: dict[str, float] = {}
    reader.read(before)
    now: dict[str, float] = {}
    reader.read(now)
    reader.close()
    columns = {column.name: column for column in reader.columns}
    assert now
    assert now.keys() <= columns.keys()
    assert all(math.isfinite(value) for value in now.values())
    for name, value in now.items():
        assert value >= 0
        if columns[name].kind is Kind.COUNTER:
            assert value >= before[name]
        if columns[name].unit == "%":
            assert value <= 100


def documented_reader() -> str:
    """Return the example of the documentation."""
    text = (Path(__file__).parents[2] / "docs" / "readers.md").read_text(encoding="utf-8")
    return text.split("```python\n", 1)[1].split("```", 1)[0]


def test_the_documented_reader_works_and_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the documentation has at most 15 lines, and its columns become metrics."""
    monkeypatch.setattr("mlflow_perf.readers.defaults._added", [])
    code = documented_reader()
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    names: dict[str, object] = {}
    exec(code, names)
    collector = PerformanceMetricsCollector()
    collector.start()
    collector.finalize()
    metrics = collector.metrics()
    assert metrics["max_t_gc_objects"] > 0
    assert metrics["total_gc_collections"] >= 0
