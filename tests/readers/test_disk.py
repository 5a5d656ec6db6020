"""The disk readers on recorded counters, and on a mount that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.readers.trees import (
    put,
    read,
)

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.disk import DiskIoReader, DiskUsageReader
from mlflow_perf.testing import FakeClock


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return an empty procfs."""
    return tmp_path / "proc"


MB = 1 << 20


def diskstats(**sectors: tuple[int, int]) -> str:
    """Return a /proc/diskstats: device → sectors read and written."""
    return "".join(f"   8 0 {n} 9 9 {r} 9 9 9 {w} 9 0 9 9\n" for n, (r, w) in sectors.items())


def block(sys: Path, *disks: str, **slaves: str) -> None:
    """Make a /sys/block with whole disks, and devices that lie on another one."""
    for name in disks:
        (sys / "block" / name / "slaves").mkdir(parents=True)
    for name, below in slaves.items():
        (sys / "block" / name / "slaves" / below).mkdir(parents=True)


def test_disk_bytes_are_counted_once(proc: Path, tmp_path: Path) -> None:
    """Partitions, loop devices and devices on top of others do not count again."""
    sys = tmp_path / "sys"
    block(sys, "sda", "loop0", dm0="sda")
    put(proc / "diskstats", diskstats(sda=(0, 0), sda1=(0, 0), loop0=(0, 0), dm0=(0, 0)))
    reader = DiskIoReader(proc, sys=sys)
    moved = (2 * MB // 512, MB // 512)
    put(proc / "diskstats", diskstats(sda=moved, sda1=moved, loop0=moved, dm0=moved))
    assert read(reader) == {"disk_io_read_mb": 2.0, "disk_io_write_mb": 1.0}


def test_disk_that_comes_and_goes_is_never_negative(proc: Path, tmp_path: Path) -> None:
    """A new disk starts at its present count; a vanished disk keeps its last one."""
    sys = tmp_path / "sys"
    block(sys, "sda", "sdb")
    put(proc / "diskstats", diskstats(sda=(0, 0)))
    reader = DiskIoReader(proc, sys=sys)
    put(proc / "diskstats", diskstats(sda=(2048, 0), sdb=(10**6, 10**6)))
    assert read(reader)["disk_io_read_mb"] == 1.0
    put(proc / "diskstats", diskstats(sdb=(10**6 + 2048, 10**6)))
    assert read(reader)["disk_io_read_mb"] == 2.0
    put(proc / "diskstats", diskstats(sda=(4096, 0), sdb=(0, 0)))
    assert read(reader)["disk_io_read_mb"] == 3.0


def test_no_disk_is_an_unavailable_source(proc: Path, tmp_path: Path) -> None:
    """A machine without disks has no disk reader."""
    put(proc / "diskstats", diskstats(loop0=(1, 1)))
    with pytest.raises(SourceUnavailableError):
        DiskIoReader(proc, sys=tmp_path)


def test_the_root_file_system_is_measured_at_most_once_a_second() -> None:
    """At 50 samples a second, `statvfs` is not called 50 times; at one a second, each time."""
    clock, asked = FakeClock(), []

    def measure(path: str) -> float:
        asked.append(path)
        return float(len(asked))

    reader = DiskUsageReader(measure=measure, clock=clock.monotonic)
    for _ in range(50):
        clock.advance(0.02)
        read(reader)
    assert len(asked) == 2
    clock.advance(1.0)
    assert read(reader)["disk_usage_percent"] == 3.0
    assert set(asked) == {"/"}
