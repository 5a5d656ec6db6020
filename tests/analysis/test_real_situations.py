"""The verdict on real jobs: each is made to have one bottleneck, and run for two seconds.

They need the job's own figures (the process tree, its cgroup, stalls); where a machine does not
give them, or does not let us make a cgroup, the test is skipped and says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlflow_perf.analysis.advice import Verdict, decide_verdict
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.analysis.wanted_cpus import SERIAL_PEAK
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PerfRun

pytestmark = pytest.mark.e2e

# The real sampler and readers, without a tracking store, which takes seconds to make.
JOB = """
import json, multiprocessing, os, time
from mlflow_perf.node.place import detect
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector

def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))

collector = PerformanceMetricsCollector(interval=0.1)
collector.start()
{body}
collector.finalize()
print(json.dumps({{"summary": collector.metrics(), "node": detect().as_dict()}}))
"""

Run = Callable[..., tuple[dict[str, float], Verdict]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs a body of code as a job of its own and gives its summary and verdict."""

    def call(body: str, *, cgroup: Path | None = None) -> tuple[dict[str, float], Verdict]:
        code = JOB.format(body=body)
        enter = "" if cgroup is None else f"echo $$ > {cgroup}/cgroup.procs && "
        done = subprocess.run(
            ["sh", "-c", f'{enter}exec "$0" -c "$1"', sys.executable, code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        data = json.loads(done.stdout.splitlines()[-1])
        return data["summary"], decide_verdict(data["summary"], data["node"])

    return call


@pytest.fixture
def cgroup() -> Iterator[Callable[..., Path]]:
    """Return a maker of real cgroups, of either version; they are removed in the end."""
    made: list[Path] = []

    def make(controller: str, limits: dict[str, str]) -> Path:
        root = Path("/sys/fs/cgroup")
        unified = (root / "cgroup.controllers").exists()
        folder = root / ("" if unified else controller) / f"mlflow-perf-test-{os.getpid()}"
        try:
            folder.mkdir()
            made.append(folder)
            for name, value in limits.items():
                if (folder / name).exists():
                    (folder / name).write_text(value)
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        return folder

    yield make
    for folder in made:
        folder.rmdir()


def _need(summary: dict[str, float], *keys: str) -> None:
    missing = [key for key in keys if key not in summary]
    if missing:
        pytest.skip(f"this machine does not give {', '.join(missing)}")


def test_a_cpu_burner(run: Run) -> None:
    """A process per CPU that only computes is held back by the CPUs."""
    summary, found = run(
        "jobs = [multiprocessing.Process(target=spin, args=(2,)) for _ in range(os.cpu_count())]\n"
        "[j.start() for j in jobs]\n"
        "[j.join() for j in jobs]"
    )
    _need(summary, "job_cpu_avg_cores")
    assert found.bottleneck == "cpu", (found, summary)


def test_a_sleeper(run: Run) -> None:
    """A job that sleeps waits, however busy the machine is."""
    summary, found = run("time.sleep(2)")
    _need(summary, "job_cpu_avg_cores")
    assert found.bottleneck == "waiting", (found, summary)


def test_a_one_core_job_on_many_cores(run: Run) -> None:
    """A serial job is held back by one CPU, and is told to use more or to ask for one."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one CPU")
    summary, found = run("spin(2)")
    _need(summary, "job_cpu_avg_cores")
    assert found.bottleneck == "cpu", (found, summary)


def _slow_disk(path: Path) -> Path | None:
    """Return a real cgroup in which the disk below `path` writes 4 MB/s; None where none can be."""
    root, device = Path("/sys/fs/cgroup"), path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    limits = {
        "blkio/{}/blkio.throttle.write_bps_device": f"{number} {4 << 20}",
        "{}/io.max": f"{number} wbps={4 << 20}",
    }
    for place, limit in limits.items():
        file = root / place.format(f"mlflow-perf-test-disk-{os.getpid()}")
        if not file.parent.parent.joinpath("cgroup.procs").exists():
            continue
        try:
            file.parent.mkdir()
            file.write_text(limit)
        except OSError:
            file.parent.rmdir() if file.parent.exists() else None
            continue
        return file.parent
    return None


def test_a_disk_writer(run: Run, tmp_path: Path) -> None:
    """A job that writes and syncs waits for its disk, made slow where this machine allows it."""
    slow = _slow_disk(tmp_path)
    try:
        summary, found = run(
            "end = time.monotonic() + 2\n"
            "block = os.urandom(1 << 20)\n"
            "with open('data', 'wb', buffering=0) as file:\n"
            "    while time.monotonic() < end:\n"
            "        file.write(block)\n"
            "        os.fsync(file.fileno())",
            cgroup=slow,
        )
    finally:
        if slow is not None:
            slow.rmdir()
    _need(summary, "job_cpu_avg_cores", "io_stall_pct")
    if found.bottleneck == "cpu" and summary["cpu_stall_pct"] >= 25:
        pytest.skip("others keep this machine's CPUs busy: that is what the job waits for")
    if summary["io_stall_pct"] < 5 and summary["iowait_pct"] < 5:
        pytest.skip("this machine's fsync does not wait for a disk")
    assert found.bottleneck == "disk", (found, summary)


def test_a_throttled_job(run: Run, cgroup: Callable[..., Path]) -> None:
    """Under a quota of a quarter of a CPU, a job that computes is throttled."""
    place = cgroup(
        "cpu",
        {"cpu.max": "25000 100000", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "25000"},
    )
    summary, found = run("spin(2)", cgroup=place)
    _need(summary, "cpu_throttled_pct")
    assert found.bottleneck == "throttled", (found, summary)


def test_a_memory_hog_under_a_limit(run: Run, cgroup: Callable[..., Path]) -> None:
    """A job that fills its limit is held back by memory, not by what it computes."""
    limit = str(300 << 20)
    place = cgroup("memory", {"memory.max": limit, "memory.limit_in_bytes": limit})
    summary, found = run(
        # Not ru_maxrss: that of the process which started this one is inherited through exec.
        "lines = open('/proc/self/status').read().splitlines()\n"
        "used = next(int(l.split()[1]) << 10 for l in lines if l.startswith('VmRSS'))\n"
        f"held = bytearray((int({limit}) - used) * 98 // 100)\n"
        "for i in range(0, len(held), 4096): held[i] = 1\n"
        "time.sleep(1)",
        cgroup=place,
    )
    _need(summary, "mem_limit_mb", "job_max_mem_mb")
    assert found.bottleneck == "memory", (found, summary)


def test_the_right_size_of_a_job_whose_need_is_known(run: Run) -> None:
    """Of a job that holds 400 MB and computes on one CPU, neither less nor twice it is advised."""
    summary, _ = run("held = bytearray(b'x') * (400 << 20)\nspin(2)")
    _need(summary, "job_max_mem_mb", "job_max_cpu_cores")
    job = PerfRun("job", document=PerfDocument({0: NodeDocument(summary=summary)}))
    size = right_size([job])
    assert size.memory_mb is not None
    assert 400 * 1.2 <= size.memory_mb < 800
    assert size.cpus is not None
    assert summary["job_max_cpu_cores"] - SERIAL_PEAK + 1 <= size.cpus <= 2
