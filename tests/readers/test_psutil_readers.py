"""The psutil readers on recorded answers, and against the kernel files on this machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.readers.trees import read

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.psutil_readers import (
    PsutilCpuReader,
    PsutilDiskIoReader,
    PsutilMemoryReader,
    PsutilNetworkReader,
)
from mlflow_perf.records import MB


def test_a_machine_that_counts_no_disk_io() -> None:
    """None from psutil at the start is no source; later it is a value left out."""
    answers: list[SimpleNamespace | None] = [None]
    fake = SimpleNamespace(disk_io_counters=lambda: answers[-1])
    with pytest.raises(SourceUnavailableError):
        PsutilDiskIoReader(fake)
    answers.append(SimpleNamespace(read_bytes=1, write_bytes=1))
    reader = PsutilDiskIoReader(fake)
    answers.append(None)
    report: dict[str, float] = {}
    reader.read(report)
    assert report == {}


def test_utilisation_comes_from_the_growth_of_the_times() -> None:
    """Everything but idle and iowait is busy, and guest time counts once."""
    start = [{"user": 10.0, "idle": 10.0, "iowait": 0.0, "guest": 5.0}] * 2
    rows = iter([
        start,
        start,
        [{"user": 13.0, "idle": 10.5, "iowait": 0.5, "guest": 5.0},
         {"user": 10.0, "idle": 14.0, "iowait": 0.0, "guest": 5.0}],
    ])  # fmt: skip

    def cpu_times(*, percpu: bool) -> list[SimpleNamespace]:
        return [SimpleNamespace(_asdict=lambda row=row: row) for row in next(rows)]

    reader = PsutilCpuReader(SimpleNamespace(cpu_times=cpu_times))
    assert "cpu_pct_per_cpu_avg" not in read(reader)
    report = read(reader)
    assert report["cpu_pct_per_cpu_max"] == 75.0
    assert report["cpu_pct_per_cpu_min"] == 0.0
    assert (report["cpu_busy_sec"], report["cpu_ticks_sec"]) == (3.0, 8.0)


def test_the_loopback_is_kept_apart() -> None:
    """Neither `lo` nor the loopback of Windows is external."""
    nics = {
        "lo": SimpleNamespace(bytes_sent=MB, bytes_recv=MB),
        "Loopback Pseudo-Interface 1": SimpleNamespace(bytes_sent=MB, bytes_recv=0),
        "eth0": SimpleNamespace(bytes_sent=3 * MB, bytes_recv=4 * MB),
    }
    report = read(PsutilNetworkReader(SimpleNamespace(net_io_counters=lambda pernic: nics)))
    assert report == {
        "net_io_lo_sent_mb": 2.0, "net_io_lo_recv_mb": 1.0,
        "net_io_ext_sent_mb": 3.0, "net_io_ext_recv_mb": 4.0,
    }  # fmt: skip


def test_without_swap_there_is_no_swap_value() -> None:
    """A machine without swap reports no swap value, not zero."""
    swap = SimpleNamespace(total=0, percent=0.0)
    fake = SimpleNamespace(
        virtual_memory=lambda: SimpleNamespace(percent=40.0, total=8 * MB),
        swap_memory=lambda: swap,
    )
    assert read(PsutilMemoryReader(fake)) == {"mem_percent": 40.0, "host_mem_mb": 8.0}
    swap.total = 10
    assert read(PsutilMemoryReader(fake))["swap_percent"] == 0.0
