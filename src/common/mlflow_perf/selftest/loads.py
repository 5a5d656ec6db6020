"""The known loads: each returns what it truly used and the measured figure.

`python -m mlflow_perf.selftest.loads NAME FOLDER` runs one of them in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.records import MB
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
from mlflow_perf.selftest.gpu_load import load_multiplier
from mlflow_perf.selftest.profile_loads import PROFILE_LOADS

_CHUNK = b"\xa5" * MB
_HOUR_SEC = 3600.0

Load = Callable[[Path], "tuple[float, ...]"]
"""Takes a folder that it may use; returns the true and the measured figure in the same unit."""


@contextlib.contextmanager
def _measured(interval: float = 1.0) -> Iterator[dict[str, float]]:
    """Measure a block as `report()` does; the dictionary has the figures after it."""
    collector = PerformanceMetricsCollector(interval=interval)
    found: dict[str, float] = {}
    collector.start()
    try:
        yield found
    finally:
        collector.finalize()
        found.update(collector.metrics())


def _read(metrics: dict[str, float], key: str) -> float:
    if key not in metrics:
        raise SourceUnavailableError(f"{key} cannot be measured on this machine.")
    return metrics[key]


def _burn(seconds: float) -> float:
    """Use this much CPU time of this thread, and return the exact amount.

    In a virtual machine the clock sometimes jumps, by the time that the host took.
    """
    begin = time.thread_time()
    while (used := time.thread_time() - begin) < seconds:
        pass
    return used


def cpu_bursts(_: Path) -> tuple[float, float]:
    """Use 1.6 CPU-seconds in bursts of 200 ms, asleep for as long between them."""
    true = 0.0
    with _measured() as metrics:
        for _burst in range(8):
            true += _burn(0.2)
            time.sleep(0.2)
    return true, _read(metrics, "job_cpu_hours") * _HOUR_SEC


def short_job(_: Path) -> tuple[float, float]:
    """Use 50 CPU-milliseconds: the block ends long before the first interval does."""
    with _measured() as metrics:
        true = _burn(0.05)
    return true, _read(metrics, "job_cpu_hours") * _HOUR_SEC


_CHILD = "import time\nwhile time.process_time() < 0.03: pass"


def ended_children(_: Path) -> tuple[float, float]:
    """Start thirty children, one after the other, that each end after 30 CPU-milliseconds."""
    true = 0.0
    with _measured() as metrics:
        before = time.thread_time()  # the sampler's thread is not the job
        for _child in range(30):
            child = subprocess.Popen([sys.executable, "-S", "-c", _CHILD])
            usage = os.wait4(child.pid, 0)[2]
            child.returncode = 0
            true += usage.ru_utime + usage.ru_stime
        true += time.thread_time() - before
    return true, _read(metrics, "job_cpu_hours") * _HOUR_SEC


def _write(path: Path, megabytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(_CHUNK)
        file.flush()
        os.fsync(file.fileno())


def disk_write(folder: Path) -> tuple[float, float]:
    """Write 64 MB and wait until they are on the disk."""
    with _measured() as metrics:
        _write(folder / "written", 64)
    return 64.0, _read(metrics, "job_io_write_mb")


def disk_read(folder: Path) -> tuple[float, float]:
    """Read 64 MB that are on the disk and not in the page cache."""
    path = folder / "read"
    _write(path, 64)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with _measured() as metrics:
            while file.read(MB):
                pass
    return 64.0, _read(metrics, "job_io_read_mb")


def loopback(_: Path) -> tuple[float, float]:
    """Send 128 MB over the loopback interface."""

    def receive() -> None:
        connection, _ = server.accept()
        with connection:
            while connection.recv(MB):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server, _measured() as metrics:
        receiver = threading.Thread(target=receive)
        receiver.start()
        with socket.create_connection(server.getsockname()) as client:
            for _chunk in range(128):
                client.sendall(_CHUNK)
        receiver.join()
    return 128.0, _read(metrics, "total_net_io_lo_sent_mb")


def memory_peak(_: Path) -> tuple[float, float]:
    """Hold 256 MB for 300 ms, between two samples."""
    with _measured() as metrics:
        before = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        block = bytearray(b"\xa5") * (256 * MB)
        time.sleep(0.3)
        del block
        time.sleep(0.1)
    page_mb = os.sysconf("SC_PAGE_SIZE") / MB
    return 256.0, _read(metrics, "job_max_mem_mb") - int(before) * page_mb


def duration(_: Path) -> tuple[float, float]:
    """Take two seconds by the monotonic clock."""
    with _measured() as metrics:
        begin = time.monotonic()
        time.sleep(2.0)
        true = time.monotonic() - begin
    return true, _read(metrics, "duration_sec")


def gpu_busy(_: Path) -> tuple[float, float]:
    """Keep the first GPU busy for two seconds without a pause: 100% of that time."""
    multiply = load_multiplier()
    multiply()  # the library's start is not measured
    with _measured(0.2) as metrics:
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            multiply()
    return 100.0, _read(metrics, "gpu0_avg_utilization_pct")


LOADS: dict[str, Load] = {
    load.__name__: load
    for load in (
        cpu_bursts, short_job, ended_children, disk_write, disk_read, loopback, memory_peak,
        duration, *PROFILE_LOADS, gpu_busy,
    )
}  # fmt: skip
"""Name → load."""


def main(name: str, folder: str) -> None:
    """Run one load and print `[true, measured]`, or why the load cannot run."""
    found: object
    try:
        found = LOADS[name](Path(folder))
    except (SourceUnavailableError, OSError, AttributeError) as error:
        found = {"skipped": str(error)}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:3])
