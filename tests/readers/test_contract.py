"""What every reader must do, whatever its source: one test, all readers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers import Reader
from mlflow_perf.readers.cgroup.limits import LimitsReader, owned
from mlflow_perf.readers.cgroup.pressure import PressureReader
from mlflow_perf.readers.cpu.cpu import CpuReader
from mlflow_perf.readers.cpu.cpu_share import CpuShareReader
from mlflow_perf.readers.disk import DiskIoReader, DiskUsageReader
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
from mlflow_perf.records import Kind
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector


def owned_cpu_reader() -> Reader:
    """Return the CPU's reader for a job that owns half a CPU."""
    return CpuShareReader(CpuReader(), cores=0.5, used=ProcessTreeReader())


def limits_reader() -> Reader:
    """Return the reader of what this process owns."""
    return LimitsReader(owned)


READERS: list[Callable[[], Reader]] = [
    CpuReader,
    MemoryReader,
    DiskIoReader,
    DiskUsageReader,
    NetworkReader,
    PsutilCpuReader,
    PsutilMemoryReader,
    PsutilDiskIoReader,
    PsutilDiskUsageReader,
    PsutilNetworkReader,
    ProcessTreeReader,
    PsutilProcessTreeReader,
    PressureReader,
    owned_cpu_reader,
    limits_reader,
]


@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
def test_reader_contract(make: Callable[[], Reader]) -> None:
    """A reader puts finite numbers under its own columns; its counters never fall."""
    try:
        reader = make()
    except SourceUnavailableError as error:
        pytest.skip(str(error))
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
