"""What every reader must do, whatever its source: one test, all readers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from mlflow_perf.readers import Reader, default_readers
from mlflow_perf.readers.cpu import CpuReader
from mlflow_perf.readers.disk import DiskIoReader, DiskUsageReader
from mlflow_perf.readers.memory import MemoryReader
from mlflow_perf.readers.network import NetworkReader
from mlflow_perf.readers.portable import (
    PsutilCpuReader,
    PsutilDiskIoReader,
    PsutilDiskUsageReader,
    PsutilMemoryReader,
    PsutilNetworkReader,
)
from mlflow_perf.records import Kind

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
]


@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
def test_reader_contract(make: Callable[[], Reader]) -> None:
    """A reader puts finite numbers under its own columns; its counters never fall."""
    reader = make()
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


def test_default_readers_give_the_columns_of_the_contract() -> None:
    """On this machine the default readers give every column that the interface promises."""
    report: dict[str, float] = {}
    for reader in default_readers():
        reader.read(report)
        reader.read(report)
        reader.close()
    promised = {
        "cpu_pct_per_cpu_avg", "cpu_pct_per_cpu_min", "cpu_pct_per_cpu_max", "mem_percent",
        "disk_usage_percent", "net_io_lo_sent_mb", "net_io_ext_sent_mb", "net_io_lo_recv_mb",
        "net_io_ext_recv_mb",
    }  # fmt: skip
    # Two reads within one clock tick of the kernel give no utilisation.
    assert promised - {n for n in promised if n.startswith("cpu_pct")} <= report.keys()
