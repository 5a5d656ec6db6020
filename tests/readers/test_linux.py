"""The readers of the kernel's files, on recorded trees with known answers."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.cpu.cpu import CpuReader
from mlflow_perf.readers.disk import DiskIoReader, DiskUsageReader
from mlflow_perf.readers.memory import MemoryReader
from mlflow_perf.readers.network import NetworkReader
from mlflow_perf.readers.procfile import ProcFile

MB = 1 << 20


def stat(*cpus: tuple[int, ...]) -> str:
    """Return a /proc/stat with a line for each CPU: user, idle, iowait and, if any, steal ticks."""
    four = enumerate(map(_four, cpus))
    lines = [f"cpu{n} {u} 0 0 {i} {w} 0 0 {s} 0 0" for n, (u, i, w, s) in four]
    return "cpu  1 2 3 4 5 6 7 8 9 10\n" + "\n".join(lines) + "\nintr 1 2 3\nctxt 4\n"


def _four(ticks: tuple[int, ...]) -> tuple[int, int, int, int]:
    user, idle, iowait, steal = (*ticks, 0)[:4]
    return user, idle, iowait, steal


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return an empty procfs."""
    (tmp_path / "proc" / "net").mkdir(parents=True)
    return tmp_path / "proc"


def put(path: Path, text: str) -> None:
    """Replace a file's content, keeping the inode that a reader holds open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+" if path.exists() else "w") as file:
        file.truncate()
        file.write(text)


def read(reader) -> dict[str, float]:
    """Return one report of one reader."""
    report: dict[str, float] = {}
    reader.read(report)
    return report


def test_a_block_shorter_than_a_tick_has_its_own_cpu_time(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a tick is counted, the process's own CPU time stands for the CPUs' utilisation."""
    put(proc / "stat", stat((100, 100, 0), (50, 50, 0)))
    now = {"wall": 0.0, "cpu": 5.0}
    clocks = SimpleNamespace(monotonic=lambda: now["wall"], process_time=lambda: now["cpu"])
    monkeypatch.setattr("mlflow_perf.readers.cpu.cpu.time", clocks)
    reader = CpuReader(proc, ticks_per_sec=100)
    assert "cpu_pct_per_cpu_avg" not in read(reader)
    now.update(wall=0.004, cpu=5.003)
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == pytest.approx(37.5)
    assert report["cpu_pct_per_cpu_max"] == pytest.approx(75.0)
    assert report["cpu_pct_per_cpu_min"] == 0.0
    assert report["cpu_ticks_sec"] == 0.0
    put(proc / "stat", stat((101, 100, 0), (50, 51, 0)))
    assert read(reader)["cpu_pct_per_cpu_avg"] == 50.0


def test_cpu_utilisation_is_the_busy_share_of_the_ticks(proc: Path) -> None:
    """Utilisation per CPU is its busy ticks over all its ticks since the last read."""
    put(proc / "stat", stat((100, 100, 0), (50, 50, 0)))
    reader = CpuReader(proc, ticks_per_sec=100)
    put(proc / "stat", stat((175, 125, 0), (50, 140, 10)))
    report = read(reader)
    assert report["cpu_pct_per_cpu_max"] == 75.0
    assert report["cpu_pct_per_cpu_min"] == 0.0
    assert report["cpu_pct_per_cpu_avg"] == 37.5
    assert report["cpu_busy_sec"] == 0.75
    assert report["cpu_ticks_sec"] == 2.0
    assert report["cpu_iowait_sec"] == 0.1
    assert report["cpu_limit_cores"] == 2


def test_cpu_time_that_the_host_took_is_busy_and_told_apart(proc: Path) -> None:
    """Steal is time in which a CPU had work: busy, as psutil counts it, and a sum of its own."""
    put(proc / "stat", stat((0, 0, 0, 40), (0, 0, 0, 0)))
    reader = CpuReader(proc, ticks_per_sec=100)
    put(proc / "stat", stat((30, 10, 0, 100), (0, 100, 0, 0)))
    report = read(reader)
    assert report["cpu_steal_sec"] == 0.6
    assert report["cpu_busy_sec"] == 0.9
    assert report["cpu_ticks_sec"] == 2.0


def test_cpu_counts_only_the_cpus_of_the_job(proc: Path) -> None:
    """With an affinity, the other CPUs of the host do not count."""
    put(proc / "stat", stat((0, 0, 0), (0, 0, 0)))
    reader = CpuReader(proc, cpus={1}, ticks_per_sec=100)
    put(proc / "stat", stat((100, 0, 0), (25, 75, 0)))
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == report["cpu_pct_per_cpu_max"] == 25.0
    assert report["cpu_limit_cores"] == 1


def test_cpu_that_goes_offline_takes_nothing_away(proc: Path) -> None:
    """A CPU that vanishes and comes back at zero never makes a sum fall."""
    put(proc / "stat", stat((0, 0, 0), (900, 900, 0)))
    reader = CpuReader(proc, ticks_per_sec=100)
    put(proc / "stat", stat((100, 0, 0)))
    assert read(reader)["cpu_busy_sec"] == 1.0
    put(proc / "stat", stat((200, 0, 0), (5, 5, 0)))
    report = read(reader)
    assert report["cpu_busy_sec"] == 2.0
    assert report["cpu_pct_per_cpu_avg"] == 100.0


def test_cpu_without_time_between_reads_keeps_the_last_utilisation(proc: Path) -> None:
    """Two reads within one tick tell nothing new: the last figure stands, none is made up."""
    put(proc / "stat", stat((0, 0, 0)))
    reader = CpuReader(proc, ticks_per_sec=100)
    assert "cpu_pct_per_cpu_avg" not in read(reader)
    put(proc / "stat", stat((30, 70, 0)))
    assert read(reader)["cpu_pct_per_cpu_avg"] == 30.0
    assert read(reader)["cpu_pct_per_cpu_avg"] == 30.0


def test_256_cpus(proc: Path) -> None:
    """A file longer than the first buffer is read whole."""
    put(proc / "stat", stat(*[(10**9, 10**9, 10**9)] * 256))
    reader = CpuReader(proc, ticks_per_sec=100)
    put(proc / "stat", stat(*[(10**9 + n, 10**9 + 256 - n, 10**9) for n in range(256)]))
    report = read(reader)
    assert report["cpu_limit_cores"] == 256
    assert report["cpu_pct_per_cpu_avg"] == pytest.approx(100 * 127.5 / 256)


def test_missing_stat_is_an_unavailable_source(proc: Path) -> None:
    """A source that is not there says so, with its path."""
    with pytest.raises(SourceUnavailableError, match="stat"):
        CpuReader(proc)


MEMINFO = (
    "MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  {} kB\nSwapTotal: {} kB\nSwapFree: {} kB\n"
)


def test_memory_in_use_is_what_is_not_available(proc: Path) -> None:
    """Memory and swap are shares of what there is."""
    put(proc / "meminfo", MEMINFO.format(250, 200, 150))
    assert read(MemoryReader(proc)) == {"mem_percent": 75.0, "swap_percent": 25.0}


def test_without_swap_there_is_no_swap_figure(proc: Path) -> None:
    """A machine without swap has no swap figure, not a zero."""
    put(proc / "meminfo", MEMINFO.format(250, 0, 0))
    assert read(MemoryReader(proc)) == {"mem_percent": 75.0}


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
    """A new disk starts at what it shows; a vanished one keeps what it did."""
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
    """A container without disks has no figures of them."""
    put(proc / "diskstats", diskstats(loop0=(1, 1)))
    with pytest.raises(SourceUnavailableError):
        DiskIoReader(proc, sys=tmp_path)


def test_disk_usage_that_hangs_does_not_hang_the_sampler() -> None:
    """A mount that does not answer leaves the last figure; `read` returns at once."""
    release = threading.Event()
    answers = iter([40.0])

    def measure(path: str) -> float:
        try:
            return next(answers)
        except StopIteration:
            release.wait(30)
            return 50.0

    reader = DiskUsageReader("/mnt", measure=measure)
    assert read(reader)["disk_usage_percent"] == 40.0
    assert read(reader)["disk_usage_percent"] == 40.0
    release.set()


def netdev(**counters: tuple[int, int]) -> str:
    """Return a /proc/net/dev: interface → bytes sent and received."""
    lines = [f"{n:>6}: {r} 1 0 0 0 0 0 0 {s} 1 0 0 0 0 0 0" for n, (s, r) in counters.items()]
    return "Inter-| Receive\n face |bytes\n" + "\n".join(lines) + "\n"


def test_network_tells_loopback_from_the_rest(proc: Path, tmp_path: Path) -> None:
    """Bytes count from when the reader was made, loopback apart."""
    put(proc / "net" / "dev", netdev(lo=(7, 7), eth0=(9, 9)))
    reader = NetworkReader(proc, sys=tmp_path)
    put(proc / "net" / "dev", netdev(lo=(7 + MB, 7 + MB), eth0=(9 + 2 * MB, 9 + 3 * MB)))
    assert read(reader) == {
        "net_io_lo_sent_mb": 1.0,
        "net_io_lo_recv_mb": 1.0,
        "net_io_ext_sent_mb": 2.0,
        "net_io_ext_recv_mb": 3.0,
    }


def test_network_counts_a_containers_bytes_once(proc: Path, tmp_path: Path) -> None:
    """Where there is hardware, the bridge and the veth pair before it do not count again."""
    (tmp_path / "class" / "net" / "eth0" / "device").mkdir(parents=True)
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(0, 0), docker0=(0, 0), veth1=(0, 0)))
    reader = NetworkReader(proc, sys=tmp_path)
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(MB, 0), docker0=(MB, 0), veth1=(MB, 0)))
    assert read(reader)["net_io_ext_sent_mb"] == 1.0


def test_network_interface_that_vanishes_or_resets(proc: Path, tmp_path: Path) -> None:
    """A vanished interface keeps what it sent; one made anew starts at zero."""
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(5 * MB, 0)))
    reader = NetworkReader(proc, sys=tmp_path)
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(6 * MB, 0)))
    assert read(reader)["net_io_ext_sent_mb"] == 1.0
    put(proc / "net" / "dev", netdev(lo=(0, 0)))
    assert read(reader)["net_io_ext_sent_mb"] == 1.0
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(2 * MB, 0)))
    assert read(reader)["net_io_ext_sent_mb"] == 3.0


def test_proc_file_reads_whole_and_says_when_it_cannot(tmp_path: Path) -> None:
    """A kept file is read from its beginning each time, whatever its length."""
    path = tmp_path / "f"
    path.write_bytes(b"a" * 100_000)
    file = ProcFile(path)
    assert file.read() == b"a" * 100_000
    path.write_bytes(b"b")
    assert file.read() == b"b"
    file.close()
    file.close()
    with pytest.raises(OSError, match=r"[Bb]ad file"):
        file.read()


def test_memory_agrees_with_psutil() -> None:
    """On this machine memory is what psutil, the reference, says, within what moves meanwhile."""
    assert read(MemoryReader())["mem_percent"] == pytest.approx(
        psutil.virtual_memory().percent, abs=1.5
    )
