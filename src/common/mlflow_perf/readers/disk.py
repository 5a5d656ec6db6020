"""Bytes that the disks read and wrote, and how full the root file system is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from mlflow_perf.core.originals import os, time
from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import DISK_IO_COLUMNS, DISK_USAGE_COLUMNS
from mlflow_perf.readers.procfile import ProcFile
from mlflow_perf.records import MB, Column

_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own sector is
_NOT_DISKS = ("loop", "ram", "zram")
# A disk fills slowly, and `statvfs` releases the GIL, which costs a busy main thread 45 µs per
# call. Just below a second, so that a sampler at 1 Hz asks each time.
_LEAST_AGE_SEC = 0.9


class DiskIoReader:
    """Bytes read and written by all whole disks since boot, each byte counted once.

    Args:
        proc: Where procfs is mounted.
        sys: Where sysfs is mounted.

    Raises:
        SourceUnavailableError: When there is no `/proc/diskstats` or no disk in it.
    """

    name = "disk_io"
    columns: Sequence[Column] = DISK_IO_COLUMNS

    def __init__(self, proc: Path | str = "/proc", *, sys: Path | str = "/sys") -> None:
        self._file = ProcFile(f"{proc}/diskstats")
        self._block = f"{sys}/block"
        self._lines = -1
        self._disks = re.compile(b"")
        self._before: dict[bytes, tuple[int, int]] = {}
        self._read_sectors = self._written_sectors = 0
        self.read({})
        if not self._before:
            raise SourceUnavailableError(f"{self._file.path} names no disk.")

    def _is_whole_disk(self, name: str) -> bool:
        """Return whether the bytes of this device are counted for no other device.

        A partition's bytes count for its disk too, and those of a device-mapper or RAID device for
        the disks below it.
        """
        # sysfs writes the slash in a device's name as "!".
        device = f"{self._block}/{name.replace('/', '!')}"
        if name.startswith(_NOT_DISKS) or not os.path.exists(device):
            return False
        try:
            return not os.listdir(f"{device}/slaves")
        except OSError:
            return True

    def read(self, report: dict[str, float]) -> None:
        """Put the megabytes moved since this reader was made into the report."""
        data = self._file.read()
        if (lines := data.count(b"\n")) != self._lines:
            names = [fields[2] for line in data.splitlines() if len(fields := line.split()) > 9]
            disks = [name for name in names if self._is_whole_disk(name.decode())]
            # Fields after the name: reads, merged, sectors read, ms, writes, merged, sectors
            # written. A pattern of the disks alone skips the dozens of lines of loop devices in C.
            either = b"|".join(map(re.escape, disks)) or b"(?!)"
            self._disks = re.compile(rb" (%s) \d+ \d+ (\d+) \d+ \d+ \d+ (\d+) " % either)
            self._lines = lines
        before = self._before
        for name, *sectors in self._disks.findall(data):
            read, written = int(sectors[0]), int(sectors[1])
            # A new disk starts at its present count. A disk that vanished keeps its last count,
            # so that nothing is lost when it comes back.
            old_read, old_written = before.get(name, (read, written))
            self._read_sectors += max(0, read - old_read)
            self._written_sectors += max(0, written - old_written)
            before[name] = (read, written)
        report["disk_io_read_mb"] = self._read_sectors * _SECTOR_BYTES / MB
        report["disk_io_write_mb"] = self._written_sectors * _SECTOR_BYTES / MB

    def close(self) -> None:
        """Close `/proc/diskstats`."""
        self._file.close()


def measure_used_percent(path: str) -> float:
    """Return how full the file system of `path` is for an ordinary user, in per cent, as `df` does.

    Raises:
        OSError: When the file system does not answer.
    """
    stat = os.statvfs(path)
    used = stat.f_blocks - stat.f_bfree
    usable = used + stat.f_bavail
    return 100.0 * used / usable if usable else 0.0


class DiskUsageReader:
    """How full the root file system is, measured at most once a second.

    Args:
        measure: Returns the used share of a path's file system in per cent.
        clock: Monotonic seconds.
    """

    name = "disk_usage"
    columns: Sequence[Column] = DISK_USAGE_COLUMNS

    def __init__(
        self,
        *,
        measure: Callable[[str], float] = measure_used_percent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure, self._clock = measure, clock
        self._percent, self._asked = measure("/"), clock()

    def read(self, report: dict[str, float]) -> None:
        """Put the newest answer into the report."""
        now = self._clock()
        if now - self._asked >= _LEAST_AGE_SEC:
            self._asked = now
            self._percent = self._measure("/")
        report["disk_usage_percent"] = self._percent

    def close(self) -> None:
        """Do nothing: no descriptor is kept."""
