"""The job's processes: recorded trees with exact answers, and real ones."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.alone import alone
from tests.readers.trees import put, read, record

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.process.process import Process, ProcessTable
from mlflow_perf.readers.process.tree import ProcessTreeReader
from mlflow_perf.readers.process.usage import Usage

MB = 1 << 20


def end(proc: Path, pid: int) -> None:
    """Let a process vanish."""
    for path in (proc / str(pid)).glob("*"):
        if path.is_file():
            put(path, "")  # a reader that holds it open gets nothing more
    shutil.rmtree(proc / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a procfs with process 10 and its child 11, of 100 ticks per second."""
    record(tmp_path, 1, 0)
    record(tmp_path, 10, 1, cpu=500, children=100, rss=256, io=(5 * MB, 7 * MB))
    record(tmp_path, 11, 10, cpu=50, rss=512)
    record(tmp_path, 99, 1, cpu=10**6, rss=10**6)
    return tmp_path


def reader_of(
    proc: Path, pid: int = 10, *, at: Iterable[float] = range(10**6)
) -> ProcessTreeReader:
    """Return the reader of a recorded tree, with a clock that moves a second at each look."""
    table = ProcessTable(proc, ticks_per_sec=100, page_bytes=4096)
    ticks = iter(at)
    return ProcessTreeReader(pid, table=table, cores=4, clock=lambda: float(next(ticks)))


def test_a_sample_after_a_late_one_has_its_own_cores(proc: Path) -> None:
    """At an interval of 0.1 s, 95 ms after a late sample, the cores are not those of before."""
    reader = reader_of(proc, at=[0.0, 0.105, 0.2])
    read(reader)
    record(proc, 10, 1, cpu=510, children=100, rss=256)
    assert read(reader)["job_cpu_cores"] == pytest.approx(0.1 / 0.105)
    assert read(reader)["job_cpu_cores"] == 0.0
    reader.close()


def test_a_tree_owns_its_processes_as_of_the_newest_reading(proc: Path) -> None:
    """The root and its descendants, orphaned or not, are the tree's; ended ones are not."""
    reader = reader_of(proc)
    assert [reader.owns(pid) for pid in (1, 10, 11, 99)] == [False, True, True, False]
    record(proc, 12, 11)
    end(proc, 11)
    read(reader)
    assert [reader.owns(pid) for pid in (10, 11, 12)] == [True, False, True]
    reader.close()


def test_usage_before_the_start_does_not_count(proc: Path) -> None:
    """CPU time and bytes count from the reader's start; other processes never count."""
    reader = reader_of(proc)
    assert read(reader) == {
        "job_cpu_sec": 0.0, "job_io_read_mb": 0.0, "job_io_write_mb": 0.0,
        "job_processes": 2.0, "job_mem_mb": 3.0, "job_read_calls": 0.0, "job_write_calls": 0.0,
        "job_threads": 2.0, "job_ran_sec": 0.0, "job_run_delay_sec": 0.0, "job_ran_beside_sec": 0.0,
        "job_ran_apart_sec": 0.0, "job_system_sec": 0.0, "job_calls_mb": 0.0, "job_looks": 0.0,
        "job_blocked_looks": 0.0,
    }  # fmt: skip
    record(
        proc, 10, 1, cpu=550, children=100, rss=256, io=(6 * MB, 9 * MB), calls=(30, 4),
        called=(3 * MB, MB), kernel=(20, 5),
        threads={10: (100_000_000, 0), 101: (300_000_000, 100_000_000)},
    )  # fmt: skip
    report = read(reader)
    assert report["job_ran_beside_sec"] == pytest.approx(0.1)
    assert (report["job_read_calls"], report["job_write_calls"]) == (30.0, 4.0)
    assert (report["job_ran_sec"], report["job_run_delay_sec"]) == pytest.approx((0.4, 0.1))
    assert report["job_threads"] == 3.0
    assert report["job_cpu_sec"] == pytest.approx(0.5)
    assert report["job_system_sec"] == pytest.approx(0.25)
    assert report["job_calls_mb"] == 4.0
    assert report["job_cpu_cores"] == pytest.approx(0.5)
    assert (report["job_io_read_mb"], report["job_io_write_mb"]) == (1.0, 2.0)
    reader.close()


def test_threads_are_looked_at_while_a_cpu_is_free(proc: Path) -> None:
    """One of a child waits for a disk; while the job computes there is no such wait to see."""
    reader = reader_of(proc)
    read(reader)
    read(reader)  # it has moved nothing yet
    record(proc, 11, 10, cpu=50, rss=512, io=(MB, 0), threads={11: (0, 0), 12: (0, 0)})
    for state in "SD":
        put(proc / "11/task/12/stat", f"12 (a b) c) {state} 10 1")
        read(reader)
    record(proc, 10, 1, cpu=650, children=100, rss=256)
    report = read(reader)
    assert report["job_cpu_cores"] > 1.0
    assert (report["job_looks"], report["job_blocked_looks"]) == (2.0, 1.0)
    reader.close()


def test_a_child_that_ended_counts_once(proc: Path) -> None:
    """A child's usage that its parent took over is neither lost nor counted twice."""
    reader = reader_of(proc)
    record(proc, 11, 10, cpu=150)
    assert read(reader)["job_cpu_sec"] == pytest.approx(1.0)
    end(proc, 11)
    record(proc, 10, 1, cpu=500, children=100 + 150)
    assert read(reader)["job_cpu_sec"] == pytest.approx(1.0)
    record(proc, 10, 1, cpu=520, children=100 + 150)
    assert read(reader)["job_cpu_sec"] == pytest.approx(1.2)


def test_a_child_between_its_parents_account_and_its_own_makes_no_dip(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that vanished before its parent's account includes it causes no dip."""
    reader = reader_of(proc)
    record(proc, 11, 10, cpu=150)
    assert read(reader)["job_cpu_sec"] == pytest.approx(1.0)
    end(proc, 11)
    with monkeypatch.context() as patch:
        # The account right after this read.
        patch.setattr(reader._table, "children_sec", lambda pid: 2.5)
        assert read(reader)["job_cpu_sec"] == pytest.approx(1.0)
    record(proc, 10, 1, cpu=500, children=250)
    assert read(reader)["job_cpu_sec"] == pytest.approx(1.0)


def test_a_child_that_nobody_waited_for_is_kept(proc: Path) -> None:
    """Children of a parent that ignores them keep their last values."""
    reader = reader_of(proc)
    record(proc, 11, 10, cpu=150, io=(0, 3 * MB))
    read(reader)
    end(proc, 11)
    report = read(reader)
    assert report["job_cpu_sec"] == pytest.approx(1.0)
    record(proc, 10, 1, cpu=600, children=100, io=(5 * MB, 7 * MB))
    report = read(reader)
    assert report["job_cpu_sec"] == pytest.approx(2.0)
    assert report["job_io_write_mb"] == 3.0


def test_an_orphan_stays_in_the_tree(proc: Path) -> None:
    """A process that got another parent still counts, and so do its children."""
    record(proc, 12, 11, cpu=0)
    reader = reader_of(proc)
    end(proc, 11)
    record(proc, 10, 1, cpu=500, children=150, io=(5 * MB, 7 * MB))
    record(proc, 12, 1, cpu=300)
    record(proc, 13, 12, cpu=100)
    assert read(reader)["job_cpu_sec"] == pytest.approx(4.0)
    end(proc, 12)
    end(proc, 13)
    assert read(reader)["job_cpu_sec"] == pytest.approx(4.0)


def test_a_reused_pid_is_another_process(proc: Path) -> None:
    """A new process with the PID of an ended one is recognised by its start time."""
    reader = reader_of(proc)
    end(proc, 11)
    record(proc, 11, 1, cpu=10**6, started=5)
    assert read(reader)["job_cpu_sec"] == 0.0


def test_new_processes_are_looked_for_only_when_there_may_be_some(proc: Path) -> None:
    """While `loadavg` shows the same newest process, procfs is not listed again."""
    put(proc / "loadavg", "0 0 0 1/9 11\n")
    reader = reader_of(proc)
    record(proc, 12, 11, cpu=100)
    assert read(reader)["job_processes"] == 2.0
    put(proc / "loadavg", "0 0 0 1/9 12\n")
    report = read(reader)
    assert report["job_processes"] == 3.0
    assert report["job_cpu_sec"] == pytest.approx(1.0)


def test_a_forbidden_io_file_leaves_cpu_and_memory(proc: Path) -> None:
    """Where the bytes may not be read, they count as none and the rest goes on."""
    (proc / "11" / "io").unlink()
    reader = reader_of(proc)
    record(proc, 10, 1, cpu=600, children=100)
    (proc / "10" / "io").unlink()
    report = read(reader)
    assert report["job_cpu_sec"] == pytest.approx(1.0)
    assert report["job_io_write_mb"] == 0.0


def test_the_files_of_a_short_child_are_not_kept_open(proc: Path) -> None:
    """A job may count its descriptors before and after: those of a long child stay, for speed."""
    reader = reader_of(proc)
    for _ in range(5):
        read(reader)
    before = len(os.listdir("/proc/self/fd"))
    record(proc, 12, 10)
    read(reader)
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(5):
        read(reader)
    assert len(os.listdir("/proc/self/fd")) > before
    end(proc, 12)
    read(reader)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_whole_tree_ends(proc: Path) -> None:
    """After the root process ended, the values stay as they were."""
    reader = reader_of(proc)
    record(proc, 10, 1, cpu=700, children=100)
    assert read(reader)["job_cpu_sec"] == pytest.approx(2.0)
    end(proc, 10)
    end(proc, 11)
    report = read(reader)
    assert report["job_cpu_sec"] == pytest.approx(2.0)
    assert report["job_processes"] == 0.0
    assert "job_mem_mb" not in report


def test_no_such_process_is_an_unavailable_source(tmp_path: Path) -> None:
    """A PID without a process raises SourceUnavailableError."""
    with pytest.raises(SourceUnavailableError):
        reader_of(tmp_path, 4711)


@dataclass
class World:
    """Processes that run, fork, end and are waited for, with the true total beside them."""

    alive: dict[int, Process] = field(default_factory=dict)
    true_sec: float = 0.0
    ignoring: bool = False

    own_pid = None
    tick_sec = 0.01

    def pids(self) -> set[int]:
        return set(self.alive)

    def is_childless(self, pid: int) -> bool:
        return False

    def newest(self) -> bytes | None:
        return None

    def find(self, pid: int) -> Process | None:
        now = self.alive.get(pid)
        return None if now is None else Process(pid, now.started, now.parent)

    def refresh(self, process: Process) -> bool:
        now = self.alive.get(process.pid)
        if now is None or now.started != process.started:
            return False
        process.children_before_sec = process.children_sec
        process.parent, process.children_sec = now.parent, now.children_sec
        process.rss_bytes = now.rss_bytes
        process.usage = Usage(now.usage.cpu_sec)
        return True

    def children_sec(self, pid: int) -> float | None:
        return self.alive[pid].children_sec if pid in self.alive else None

    def keep(self, pid: int) -> None:
        pass

    drop = keep

    def read_shares(self, pid: int) -> None:
        return None

    def read_resident(self, pid: int) -> tuple[int, int]:
        return (self.alive[pid].rss_bytes, 0) if pid in self.alive else (0, 0)

    def is_fork(self, pid: int, parent: int) -> bool:
        return False

    uses_memory_of = is_fork

    def fault_bytes(self, process: Process) -> int:
        return 0

    def is_copy(self, pid: int) -> bool:
        return False

    def thread_ids(self, pid: int) -> set[int]:
        return {pid}

    def read_schedule(self, pid: int, thread: int) -> tuple[int, int] | None:
        return None

    def is_blocked(self, pid: int, thread: int) -> bool:
        return False

    def peak_bytes(self, pid: int) -> int:
        return self.alive[pid].rss_bytes if pid in self.alive else 0

    def work(self, pid: int, seconds: float) -> None:
        self.alive[pid].usage.cpu_sec += seconds
        self.true_sec += seconds

    def finish(self, pid: int) -> None:
        ended = self.alive.pop(pid)
        for child in self.alive.values():
            if child.parent == pid:
                child.parent = 1
        parent = self.alive.get(ended.parent)
        if parent is not None and not self.ignoring:
            parent.usage.cpu_sec += ended.usage.cpu_sec
            parent.children_sec += ended.usage.cpu_sec


steps = st.lists(
    st.tuples(st.sampled_from("wfer"), st.integers(0, 20), st.floats(0.1, 3.0)), max_size=60
)


@given(steps, st.booleans())
def test_totals_never_fall_and_never_exceed_the_truth(
    moves: list[tuple[str, int, float]], ignoring: bool
) -> None:
    """Whichever processes fork, work, end or get another parent, the total is the true one."""
    world = World({10: Process(10, 0, 1, rss_bytes=MB)}, ignoring=ignoring)
    reader = ProcessTreeReader(10, table=world, cores=4)  # type: ignore[arg-type]  # a stand-in
    before = 0.0
    for number, (move, choice, amount) in enumerate(moves, start=11):
        pids = sorted(world.alive)
        pid = pids[choice % len(pids)]
        if move == "w":
            world.work(pid, amount)
        elif move == "f":
            world.alive[number] = Process(number, number, pid, rss_bytes=MB)
        elif move == "e" and pid != 10:
            world.finish(pid)
        report = read(reader)
        assert before <= report["job_cpu_sec"] <= world.true_sec + 1e-9
        assert all(math.isfinite(v) and v >= 0 for v in report.values())
        before = report["job_cpu_sec"]
    assert before == pytest.approx(world.true_sec)


BURN = "import time\nwhile time.process_time() < {}: pass\n"


@pytest.mark.e2e
@alone
def test_short_children_are_not_missed() -> None:
    """Forty children that live between two reads are in the CPU time, to 10 ms each at most."""
    reader = ProcessTreeReader()
    before = os.times()
    for _ in range(20):
        subprocess.run([sys.executable, "-S", "-c", BURN.format(0.03)], check=True)
    report = read(reader)
    after = os.times()
    true = sum(after[:4]) - sum(before[:4])
    assert report["job_cpu_sec"] == pytest.approx(true, rel=0.05, abs=0.03)
    reader.close()


@pytest.mark.e2e
def test_a_child_is_its_own_tree_and_its_end_is_counted() -> None:
    """The tree of a command that this process started: from its start to after the last read."""
    code = f"{BURN.format(0.2)}\nx = bytearray(b'x') * (60 << 20)\ndel x\n{BURN.format(0.5)}"
    child = subprocess.Popen([sys.executable, "-S", "-c", code])
    before = os.times()
    reader = ProcessTreeReader(child.pid)
    peaks = []
    while child.poll() is None:
        peaks.append(read(reader).get("job_mem_peak_mb", 0.0))
        time.sleep(0.02)
    after = os.times()
    report = read(reader)
    true = sum(after[2:4]) - sum(before[2:4])
    assert report["job_cpu_sec"] == pytest.approx(true, abs=0.06)
    assert 60 < max(peaks) < 120
    assert report["job_processes"] == 0.0
    reader.close()


@pytest.mark.e2e
def test_the_switches_of_a_command_are_unknown_until_it_has_ended() -> None:
    """Of one whose wrapper is killed too there are none, which is not 0."""
    code = "import sys, time; sys.stdin.read()\nfor _ in range(20): time.sleep(0.001)"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE) as child:
        reader = ProcessTreeReader(child.pid)
        keys = {"job_voluntary_switches", "job_involuntary_switches"}
        assert not keys & read(reader).keys()
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        report = read(reader)
        assert keys <= report.keys()
        assert report["job_voluntary_switches"] >= 20
        reader.close()


@pytest.mark.e2e
def test_a_peak_between_two_reads_is_the_kernels() -> None:
    """Memory that came and went between two reads is in the peak."""
    code = (
        "import sys\nfrom mlflow_perf.readers.process.tree import ProcessTreeReader\n"
        "r = ProcessTreeReader()\nx = bytearray(b'x' * (80 << 20))\ndel x\n"
        "d = {}\nr.read(d)\nsys.exit(not 80 <= d['job_mem_peak_mb'] < 260)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.e2e
@alone
def test_bytes_written_and_synced_are_counted(tmp_path: Path) -> None:
    """16 MB written by this process and 8 by an ended child are 24 MB to the disk."""
    reader = ProcessTreeReader()
    write = "import os,sys\nf=open(sys.argv[1],'wb')\nf.write(b'x'*(int(sys.argv[2])<<20))\n"
    write += "f.flush()\nos.fsync(f.fileno())"
    subprocess.run([sys.executable, "-S", "-c", write, str(tmp_path / "a"), "8"], check=True)
    with (tmp_path / "b").open("wb") as file:
        file.write(b"x" * (16 * MB))
        file.flush()
        os.fsync(file.fileno())
    assert read(reader)["job_io_write_mb"] == pytest.approx(24, rel=0.02)
    reader.close()


@pytest.mark.e2e
def test_forked_workers_do_not_multiply_memory() -> None:
    """Three forks that share all memory with their parent add almost nothing."""
    code = (
        "import os, time\nfrom mlflow_perf.readers.process.tree import ProcessTreeReader\n"
        "x = bytearray(b'x') * (100 << 20)\nkids = []\n"
        "for _ in range(3):\n    pid = os.fork()\n    if not pid: time.sleep(30); os._exit(0)\n"
        "    kids.append(pid)\n"
        "d = {}\nProcessTreeReader().read(d)\n"
        "for pid in kids: os.kill(pid, 9)\n"
        "assert d['job_processes'] == 4, d\nassert 100 < d['job_mem_mb'] < 180, d"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.e2e
def test_the_peak_of_an_ended_fork_is_without_what_was_loaded_for_us() -> None:
    """The kernel's peak of a worker of 200 MB includes the 150 that it inherited and never used."""
    code = (
        "import os\nfrom mlflow_perf.core import own_cost\n"
        "from mlflow_perf.readers.process.tree import ProcessTreeReader\n"
        "with own_cost.bring():\n    ours = bytearray(b'x') * (150 << 20)\n"
        "reader = ProcessTreeReader()\n"
        "if not os.fork():\n    x = bytearray(b'x') * (200 << 20)\n    os._exit(0)\n"
        "os.wait()\nd = {}\nreader.read(d)\n"
        "assert 195 < d['job_mem_peak_mb'] < 280, d"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_procfs_that_hides_other_peoples_processes(tmp_path: Path) -> None:
    """Mounted with hidepid, only own processes are there: the job's tree is whole all the same."""
    record(tmp_path, 10, 1, cpu=5, rss=256)
    record(tmp_path, 11, 10, cpu=5, rss=256)
    (tmp_path / "12").mkdir()  # listed, its files forbidden
    table = ProcessTable(tmp_path, ticks_per_sec=100, page_bytes=4096)
    report: dict[str, float] = {}
    reader = ProcessTreeReader(10, table=table)
    reader.read(report)
    reader.close()
    assert report["job_processes"] == 2.0


@pytest.mark.parametrize(
    ("parent", "environ", "count"),
    [
        (1, b"A=b\0JOB=/x\0", 2.0),
        (7, b"JOB=/x\0", 2.0),  # a process above the job that gets orphans
        (1, b"JOB=/y\0", 1.0),  # of another job
        (1, b"JOB=/x/z\0", 1.0),
        (1, b"", 1.0),
        (55, b"JOB=/x\0", 1.0),  # started by a daemon for somebody who has our environment
    ],
)
def test_an_orphan_is_known_by_its_environment(
    parent: int, environ: bytes, count: float, tmp_path: Path
) -> None:
    """A daemon's parent ends at once; the job itself has no other child."""
    record(tmp_path, 7, 1)
    record(tmp_path, 10, 7, cpu=5)
    table = ProcessTable(tmp_path, ticks_per_sec=100, page_bytes=4096)
    reader = ProcessTreeReader(10, table=table, mark="JOB=/x")
    record(tmp_path, 20, parent, cpu=100)
    put(tmp_path / "20" / "environ", environ.decode())
    report = read(reader)
    assert (report["job_processes"], report["job_cpu_sec"]) == (count, count - 1.0)
    reader.close()


def test_a_rank_that_its_launcher_has_bound_is_no_limit_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one rank waits for a CPU and the other computes nothing, both may use one."""
    for pid in (10, 11):
        record(tmp_path, pid, 1)
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    bound = {10: frozenset({0}), 11: frozenset({1})}
    monkeypatch.setattr(ProcessTable, "find_cpus", lambda _, pid: bound[pid])
    cpus, ranks = frozenset({0, 1, 2}), dict[int, float | None]()
    reader = ProcessTreeReader(10, table=table, cpus=cpus, ranks=lambda: ranks)
    monkeypatch.setattr(reader._threads, "list_waiting", lambda: {10})
    monkeypatch.setattr(reader._threads, "find_cpus", lambda: frozenset({0}))
    assert read(reader)["job_affinity_cpus"] == 3.0, "the other rank has not begun yet"
    ranks[11] = None
    assert read(reader)["job_affinity_cpus"] == 2.0
    ranks[11], bound[11] = 1.0, frozenset()  # it has ended
    assert read(reader)["job_affinity_cpus"] == 2.0
    reader.close()


@pytest.mark.parametrize(
    ("waiting", "quota", "expected"),
    [
        ({}, 0.5, {}),
        ({10: frozenset({0, 1})}, None, {"job_affinity_cpus": 2.0}),
        ({10: frozenset({1}), 11: frozenset({1})}, None, {"job_affinity_cpus": 1.0}),
        ({10: frozenset({0}), 11: frozenset({1})}, None, {"job_affinity_cpus": 2.0}),
        ({10: frozenset({0, 1})}, 0.5, {"job_affinity_cpus": 2.0, "job_quota_cores": 0.5}),
        ({10: frozenset({0, 1})}, 4.0, {"job_affinity_cpus": 2.0}),
    ],
)
def test_limits_of_the_jobs_own_are_noted_where_processes_lack_a_cpu(
    waiting: dict[int, frozenset[int]],
    quota: float | None,
    expected: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All CPUs of those processes count together; a quota that is as wide is no limit."""
    record(tmp_path, 10, 1)
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    reader = ProcessTreeReader(
        10, table=table, cpus=frozenset({0, 1}), count_quota=lambda pids: quota
    )
    monkeypatch.setattr(reader._threads, "list_waiting", lambda: set(waiting))
    every = frozenset().union(*waiting.values())
    monkeypatch.setattr(reader._threads, "find_cpus", lambda: every)
    report: dict[str, float] = {}
    reader.read(report)
    names = ("job_affinity_cpus", "job_quota_cores")
    assert {name: report[name] for name in names if name in report} == expected
    reader.close()
