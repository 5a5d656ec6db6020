"""The table of situations: short jobs, each made to have one bottleneck, and their neighbours.

Each body runs for some three seconds in a process of its own, under the real sampler. The names in
`PRELUDE` are at its disposal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["NEIGHBOURS", "PRELUDE", "SITUATIONS", "Situation"]

PRELUDE = '''
import asyncio, hashlib, http.client, http.server, json, multiprocessing, os, random, shutil
import signal, socket, sqlite3, subprocess, sys, threading, time

CPUS = len(os.sched_getaffinity(0))

def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))

def digest(seconds):
    """Compute without Python's lock."""
    end, block = time.monotonic() + seconds, b"x" * (1 << 20)
    while time.monotonic() < end:
        hashlib.sha256(block).digest()

def processes(count, target, *args):
    jobs = [multiprocessing.Process(target=target, args=args) for _ in range(count)]
    [job.start() for job in jobs]
    [job.join() for job in jobs]

def threads(count, target, *args):
    jobs = [threading.Thread(target=target, args=args) for _ in range(count)]
    [job.start() for job in jobs]
    [job.join() for job in jobs]

def sync(seconds, size, name="data"):
    end, block = time.monotonic() + seconds, os.urandom(size)
    with open(name, "wb", buffering=0) as file:
        while time.monotonic() < end:
            file.write(block)
            os.fsync(file.fileno())

def small_files(seconds, read=False, folder="files", size=200, most=1 << 60):
    os.makedirs(folder, exist_ok=True)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end and count < most:
        for _ in range(100):
            path = f"{folder}/{count % 40_000}"
            with open(path, "w") as file:
                file.write("x" * size)
            if read:
                with open(path) as file:
                    file.read()
                os.remove(path)
            count += 1

def grow(seconds, mb, work=0.0):
    kept, end = [], time.monotonic() + seconds
    steps = 40
    for step in range(steps):
        kept.append(bytearray(b"x") * ((mb << 20) // steps))
        spin(work * seconds / steps)
        time.sleep(max(0.0, end - seconds * (1 - (step + 1) / steps) - time.monotonic()))

def serve(delay):
    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            time.sleep(delay)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"done" * 1000)
        def log_message(self, *args): pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    port = server.server_address[1]
    if (child := os.fork()) == 0:
        # Another machine's process: no descendant of the job, and without its output.
        if os.fork():
            os._exit(0)
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        [os.dup2(quiet, number) for number in range(3)]
        signal.alarm(20)
        server.serve_forever()
    os.waitpid(child, 0)
    server.server_close()
    return port

def call(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/")
    connection.getresponse().read()
'''

NEIGHBOURS: Mapping[str, str] = {
    # Half of the machine: one busy process for two CPUs.
    "half": "processes(max(1, CPUS // 2), spin, 60)",
    "hungry": "processes(2 * CPUS, spin, 60)",
    "hungrier": "processes(4 * CPUS, spin, 60)",
    "disk": "threads(4, sync, 60, 1 << 18, 'noise')",
    "network": (
        "pipe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "while True:\n"
        "    for _ in range(100): pipe.sendto(b'x' * 1400, ('10.99.0.2', 9))\n"
        "    time.sleep(0.003)"
    ),
}
"""Name → what a noisy neighbour does while the job runs."""


@dataclass(frozen=True)
class Situation:
    """One real job.

    Attributes:
        name: Its name.
        body: What it does.
        expected: The first finding.
        beside: The first finding beside a neighbour that takes half of the machine; default: the
            same. Several where the neighbour truly makes both about equal.
        neighbour: A neighbour that is part of the situation, of `NEIGHBOURS`.
        cgroup: Controller → file → value, of a control group in which the job runs.
        says: What the first finding's sentence has to hold.
        network: Whether job and neighbour need a network of their own.
        before: What the job does before it is measured.
        alert: Whether the job, which hardly computes, comes before all others whenever it wakes.
    """

    name: str
    body: str
    expected: str
    beside: tuple[str, ...] = ()
    neighbour: str | None = None
    cgroup: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    says: str = ""
    network: bool = False
    before: str = ""
    alert: bool = False


def _quota(percent: int) -> dict[str, dict[str, str]]:
    return {
        "cpu": {
            "cpu.shares": "200000",
            "cpu.cfs_period_us": "100000",
            "cpu.cfs_quota_us": f"{percent}000",
        }
    }


def _memory(mb: int) -> dict[str, dict[str, str]]:
    return {"memory": {"memory.limit_in_bytes": str(mb << 20)}}


_SLOW_DISK = {"blkio": {"blkio.throttle.write_bps_device": "{device} 4194304",
                        "blkio.throttle.read_bps_device": "{device} 4194304"}}  # fmt: skip
_HALVES = "spin({serial})\ntime.sleep({sleep})\nprocesses(CPUS, spin, {parallel})"

SITUATIONS: tuple[Situation, ...] = (
    # The CPUs.
    Situation("burner", "processes(CPUS, spin, 3)", "saturated", ("contended", "saturated")),
    Situation("threads_without_the_lock", "threads(CPUS, digest, 3)", "saturated",
              ("contended", "saturated")),
    Situation("pool", "with multiprocessing.Pool(CPUS) as pool:\n"
              "    pool.map(spin, [0.25] * (12 * CPUS))", "saturated", ("contended", "saturated")),
    Situation("serial_burner", "spin(3)", "serial", says="one CPU"),
    Situation("serial_hashing", "digest(3)", "serial", says="one CPU"),
    Situation("serial_children", "for _ in range(40):\n"
              "    subprocess.run([sys.executable, '-S', '-c', 'sum(range(3_000_000))'])",
              "serial", ("serial", "contended")),
    Situation("gil_threads", "threads(4, spin, 3)", "serial", says="GIL"),
    Situation("gil_threads_16", "threads(16, spin, 3)", "serial", says="GIL"),
    Situation("oversubscribed", "processes(6 * CPUS, spin, 3)", "oversubscribed", says="threads"),
    Situation("oversubscribed_threads", "threads(4 * CPUS, digest, 3)", "oversubscribed"),
    Situation("oversubscribed_twice_over", "processes(12 * CPUS, spin, 3)", "oversubscribed"),
    Situation("serial_then_parallel", _HALVES.format(serial=2.2, sleep=0, parallel=0.8), "serial"),
    Situation("mostly_parallel", _HALVES.format(serial=0.6, sleep=0, parallel=2.6), "saturated",
              ("contended", "saturated")),
    Situation("half_serial", _HALVES.format(serial=1.6, sleep=0.9, parallel=0.6), "serial"),
    Situation("starved_burner", "processes(CPUS, spin, 3)", "contended", neighbour="hungry"),
    Situation("starved_serial", "spin(3)", "contended", neighbour="hungrier"),
    Situation("starved_threads", "threads(CPUS, digest, 3)", "contended", neighbour="hungry"),
    Situation("quota_of_a_quarter", "spin(3)", "contended", cgroup=_quota(25), says="quota"),
    Situation("quota_of_one_for_four", "processes(4, spin, 3)", "contended",
              ("contended", "oversubscribed"), cgroup=_quota(100),
              says="quota"),
    # Waiting.
    Situation("sleeper", "time.sleep(3)", "waiting"),
    Situation("sleeper_beside_burners", "time.sleep(3)", "waiting", neighbour="hungry"),
    Situation("sleeper_beside_a_writer", "time.sleep(3)", "waiting", neighbour="disk"),
    Situation("sleeper_beside_traffic", "time.sleep(3)", "waiting", neighbour="network",
              network=True),
    Situation("lock", "lock = threading.Lock(); lock.acquire()\n"
              "threading.Timer(3, lock.release).start()\nlock.acquire()", "waiting"),
    Situation("slow_call", "port = PORT\n[call(port) for _ in range(4)]", "waiting",
              before="PORT = serve(0.75)"),
    Situation("slow_call_beside_traffic", "port = PORT\n[call(port) for _ in range(4)]", "waiting",
              before="PORT = serve(0.75)", neighbour="network", network=True),
    Situation("polling", "for _ in range(60): call(PORT); spin(0.004)", "waiting",
              before="PORT = serve(0.05)"),
    Situation("waits_for_a_child", "subprocess.run(['sleep', '3'])", "waiting"),
    Situation("periodic", "for _ in range(10): spin(0.06); time.sleep(0.24)", "waiting"),
    Situation("tasks_asleep", "async def task(): await asyncio.sleep(3)\n"
              "async def every(): await asyncio.gather(*(task() for _ in range(100)))\n"
              "asyncio.run(every())", "waiting"),
    Situation("threads_asleep", "threads(20, time.sleep, 3)", "waiting"),
    # Disks.
    Situation("syncs_small_blocks", "sync(3, 1 << 12)", "disk", alert=True),
    Situation("syncs_large_blocks", "sync(3, 1 << 22)", "disk", cgroup=_SLOW_DISK, alert=True),
    Situation("syncs_in_threads", "\n".join([
              "jobs = [threading.Thread(target=sync, args=(3, 1 << 14, str(i))) for i in range(3)]",
              "[job.start() for job in jobs]", "[job.join() for job in jobs]"]),
              "disk", alert=True),
    Situation("slow_writer", "sync(3, 1 << 20)", "disk", cgroup=_SLOW_DISK, alert=True),
    Situation("slow_reader", "end = time.monotonic() + 3\n"
              "file = os.open('source', os.O_RDONLY)\n"
              "while time.monotonic() < end and os.read(file, 1 << 18): pass", "disk",
              cgroup=_SLOW_DISK, alert=True,
              before="with open('source', 'wb') as file: file.write(os.urandom(16 << 20))\n"
                     "os.sync()\n"
                     "file = os.open('source', os.O_RDONLY)\n"
                     "os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)"),
    Situation("commits", "base = sqlite3.connect('base.db')\nbase.execute('create table t (a)')\n"
              "end = time.monotonic() + 3\nwhile time.monotonic() < end:\n"
              "    base.execute('insert into t values (1)')\n    base.commit()",
              "disk", alert=True),
    Situation("small_files", "small_files(3)", "disk", says="reads and writes of"),
    Situation("small_files_read_back", "small_files(3, read=True)", "disk",
              says="reads and writes of"),
    Situation("small_files_copied", "end = time.monotonic() + 2\nwhile time.monotonic() < end:\n"
              "    shutil.copytree('files', 'copies', dirs_exist_ok=True)", "disk",
              before="small_files(9, size=2000, most=4000)", says="reads and writes of"),
    # Memory.
    Situation("grows", "grow(4, 1200)", "memory_growth", says="Memory grew"),
    Situation("grows_and_computes", "grow(4, 1200, work=0.6)", "memory_growth"),
    Situation("leaks_a_list", "kept = []\nend = time.monotonic() + 4\n"
              "while time.monotonic() < end: kept.append(bytearray(b'x') * 20000), spin(1e-4)\n"
              "kept.clear()", "memory_growth"),
    Situation("loads_then_computes", "kept = bytearray(b'x') * (600 << 20)\nspin(3)", "serial"),
    Situation("grows_a_little", "grow(3, 40)", "waiting"),
    Situation("near_its_limit", "kept = bytearray(b'x') * (270 << 20)\ntime.sleep(2)", "memory",
              cgroup=_memory(310)),
    Situation("killed_child", "time.sleep(1)\nprocesses(1, bytearray.__mul__, bytearray(b'x'), "
              "900 << 20)\ntime.sleep(1)", "memory", cgroup=_memory(400), says="killed"),
    # Too short.
    Situation("prints", "print(1, file=sys.stderr)", "too_short"),
    Situation("short_burner", "spin(0.3)", "too_short"),
    Situation("short_sleeper", "time.sleep(0.7)", "too_short"),
    # Phases of different kinds.
    Situation("sleeps_then_computes", "time.sleep(1)\nspin(3)", "serial", says="from"),
    Situation("computes_then_sleeps", "spin(0.8)\ntime.sleep(2.6)", "waiting", says="from"),
    Situation("parallel_then_syncs", "processes(CPUS, spin, 2.6)\nsync(0.6, 1 << 14)", "saturated",
              ("contended", "saturated")),
    Situation("syncs_then_computes", "sync(3, 1 << 14)\nspin(0.5)", "disk", alert=True),
    Situation("loads_then_burns", "time.sleep(0.4)\nprocesses(CPUS, spin, 2.6)", "saturated",
              ("contended", "saturated")),
)  # fmt: skip
"""Every situation, with the finding that has to come first."""
