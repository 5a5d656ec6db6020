"""Bytes that the disks read and wrote, and how full one is.

Imports procfile and the column table.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import DISK_IO_COLUMNS, DISK_USAGE_COLUMNS
from mlflow_perf.readers.procfile import ProcFile
from mlflow_perf.records import MB, Column

__all__ = ["DiskIoReader", "DiskUsageReader", "used_percent"]

_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own sector is
_NOT_DISKS = ("loop", "ram", "zram")


def _is_whole_disk(block: Path, name: str) -> bool:
    """Tell whether bytes counted for this device are counted for no other device.

    A partition counts again for its disk, and so does a device-mapper or RAID device for the
    disks below it.
    """
    if name.startswith(_NOT_DISKS) or not (block / name).exists():
        return False
    slaves = block / name / "slaves"
    return not (slaves.is_dir() and any(slaves.iterdir()))


class DiskIoReader:
    """Bytes read and written since boot, each once, over all whole disks.

    Args:
        proc: Where procfs is mounted.
        sys: Where sysfs is mounted.

    Raises:
        SourceUnavailableError: When there is no `/proc/diskstats` or no disk in it.
    """

    name = "disk_io"
    columns: Sequence[Column] = DISK_IO_COLUMNS

    def __init__(self, proc: Path | str = "/proc", *, sys: Path | str = "/sys") -> None:
        self._file = ProcFile(Path(proc) / "diskstats")
        self._block = Path(sys) / "block"
        self._lines = -1
        self._disks = re.compile(b"")
        self._before: dict[bytes, tuple[int, int]] = {}
        self._read_sectors = self._written_sectors = 0
        self._count_up()
        if not self._before:
            raise SourceUnavailableError(f"{self._file.path} names no disk.")

    def _find_disks(self, data: bytes) -> None:
        names = [fields[2] for line in data.splitlines() if len(fields := line.split()) > 9]
        # sysfs writes the slash in a device's name as "!".
        disks = [n for n in names if _is_whole_disk(self._block, n.decode().replace("/", "!"))]
        # Fields after the name: reads, merged, sectors read, ms, writes, merged, sectors written.
        # A pattern of the disks alone passes over the dozens of lines of loop devices in C.
        either = b"|".join(map(re.escape, disks)) or b"(?!)"
        self._disks = re.compile(rb" (%s) \d+ \d+ (\d+) \d+ \d+ \d+ (\d+) " % either)

    def _count_up(self) -> None:
        data = self._file.read()
        if (lines := data.count(b"\n")) != self._lines:
            self._find_disks(data)
            self._lines = lines
        before = self._before
        for name, *sectors in self._disks.findall(data):
            read, written = int(sectors[0]), int(sectors[1])
            # A disk that was not there before starts at what it shows now; one that vanished is
            # remembered, so that what it did while away is not lost.
            old_read, old_written = before.get(name, (read, written))
            self._read_sectors += max(0, read - old_read)
            self._written_sectors += max(0, written - old_written)
            before[name] = (read, written)

    def read(self, report: dict[str, float]) -> None:
        """Put the megabytes moved since this reader was made into the report."""
        self._count_up()
        report["disk_io_read_mb"] = self._read_sectors * _SECTOR_BYTES / MB
        report["disk_io_write_mb"] = self._written_sectors * _SECTOR_BYTES / MB

    def close(self) -> None:
        """Close `/proc/diskstats`."""
        self._file.close()


def used_percent(path: str) -> float:
    """Return how full the file system of `path` is for an ordinary user, in per cent, as `df` does.

    Raises:
        OSError: When the file system does not answer.
    """
    stat = os.statvfs(path)
    used = stat.f_blocks - stat.f_bfree
    usable = used + stat.f_bavail
    return 100.0 * used / usable if usable else 0.0


class DiskUsageReader:
    """How full a file system is, asked in a thread of its own: `statvfs` of a dead mount hangs.

    Args:
        path: A path on the file system.
        every: Ask again at each this many reads; a disk fills slowly, and asking costs 10 µs.
        measure: What returns the share in use, in per cent.

    Raises:
        SourceUnavailableError: When the file system cannot be asked, or not within a second.
    """

    name = "disk_usage"
    columns: Sequence[Column] = DISK_USAGE_COLUMNS

    def __init__(
        self,
        path: str = "/",
        *,
        every: int = 1,
        measure: Callable[[str], float] = used_percent,
    ) -> None:
        self._path = path
        self._every = every
        self._measure = measure
        self._reads = 0
        self._value: float | None = None
        self._asking = threading.Lock()
        # The root file system is there or nothing is; only another one can hang.
        self._direct = path == "/"
        self._ask()
        if self._value is None:
            raise SourceUnavailableError(f"The file system of {path} does not tell how full it is.")

    def _ask(self) -> None:
        if self._direct:
            self._value = self._measure(self._path)
            return
        thread = threading.Thread(target=self._ask_slowly, name="perf-statvfs", daemon=True)
        thread.start()
        if self._value is None:
            thread.join(1.0)

    def _ask_slowly(self) -> None:
        if self._asking.acquire(blocking=False):
            try:
                self._value = self._measure(self._path)
            except OSError:
                self._value = None
            finally:
                self._asking.release()

    def read(self, report: dict[str, float]) -> None:
        """Put the newest answer into the report."""
        if self._reads % self._every == 0:
            self._ask()
        self._reads += 1
        if self._value is not None:
            report["disk_usage_percent"] = self._value

    def close(self) -> None:
        """Do nothing: a thread that hangs in the kernel cannot be ended."""
