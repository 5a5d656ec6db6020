"""Every Python process below a session is sampled, however it was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.alone import alone
from tests.interrupted import check_each_line

from mlflow_perf.integrations import startup
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.collect import collect_stacks
from mlflow_perf.recorders.profile import live
from mlflow_perf.recorders.profile.windows import StackWindow

_JOB = """\
import multiprocessing, os, signal, sys, time

def burn(seconds=0.5):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))

def in_fork(): burn()
def in_spawn(): burn()
def in_server(): burn()

def in_killed():
    burn()
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    for method, work in (("fork", in_fork), ("spawn", in_spawn), ("forkserver", in_server)):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
    if sys.argv[1:] != ["-"]:
        in_killed()
"""


def _run_below(place: Path, code: str, *argv: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script as a session that offers a spool folder would."""
    job = place.parent / "job.py"
    job.write_text(code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(spool.VARIABLE, str(place))
        live.offer(place, 100.0)
        live.withdraw()
        startup.add_to_path("test")
        try:
            return subprocess.run(
                [sys.executable, str(job), *argv],
                cwd=job.parent,
                capture_output=True,
                timeout=100,
                check=False,
            )
        finally:
            startup.remove_from_path("test")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Return function → CPU seconds, from all processes of a job that killed itself."""
    folder = tmp_path_factory.mktemp("job")
    place = spool.create(folder)
    ended = _run_below(place, _JOB)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stderr == b""
    sums: dict[str, float] = {}
    for raw in collect_stacks(place):
        for _, _, stack, _, cpu, _ in raw.cells:
            for name in {raw.functions[one].name for one in raw.stacks[stack][2]}:
                sums[name] = sums.get(name, 0.0) + cpu
    return sums


@pytest.mark.parametrize("name", ["in_fork", "in_spawn", "in_server", "in_killed"])
def test_each_way_to_start_a_process_is_sampled(found: dict[str, float], name: str) -> None:
    """Fork, spawn and forkserver, and a process that is killed: half a CPU second each.

    A child computes before its sampler is there, longest on a machine that others load.
    """
    assert 0.1 <= found.get(name, 0.0) <= 0.7


def test_a_process_has_its_time_until_it_exits(tmp_path: Path) -> None:
    """Of a thread that waits, up to the last second was lost: the last step seemed to take none."""
    place = spool.create(tmp_path)
    live.offer(place, None)
    live.withdraw()
    code = (
        "import time\nfrom pathlib import Path\n"
        "from mlflow_perf.recorders.profile import live\n"
        "def early(): time.sleep(0.4)\n"
        "def late(): time.sleep(0.4)\n"
        f"live.join(Path({str(place)!r}))\n"
        "for step in (early, late):\n"
        "    began = time.monotonic()\n"
        "    step()\n"
        "    print(time.monotonic() - began)\n"
    )
    job = [sys.executable, "-c", code]
    ended = subprocess.run(job, timeout=60, check=True, capture_output=True, text=True)
    [raw] = collect_stacks(place)
    names = [raw.functions[path[-1]].name for _, _, path in raw.stacks]
    for name, took in zip(("early", "late"), map(float, ended.stdout.split()), strict=True):
        seconds = sum(cell[3] for cell in raw.cells if names[cell[2]] == name)
        assert seconds == pytest.approx(took, rel=0.2, abs=0.05)


def test_a_process_below_no_session_is_not_sampled(tmp_path: Path) -> None:
    """Without the file in the spool folder nothing starts."""
    live.join(tmp_path)
    assert live._live.sampler is None
    assert os.listdir(tmp_path) == []


def test_a_free_threaded_interpreter_is_not_sampled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading another thread's frames is not safe there: one warning, and no thread."""
    monkeypatch.setattr(
        "mlflow_perf.core.originals.sys._is_gil_enabled", lambda: False, raising=False
    )
    window = live.begin(100.0, None)
    assert "free-threaded" in caplog.text
    assert live.end(window).cells == []


@alone
def test_no_sampler_stays_wherever_an_alarm_raises_in_its_start() -> None:
    """Its thread ends, whether or not anybody got the window."""
    made: list[StackWindow] = []

    def end() -> None:
        while made:
            live.end(made.pop())

    assert check_each_line(lambda: made.append(live.begin(100, None, held=True)), end) > 50


# The thread that samples a forked child would begin after 0.1 s.
_LIMITED = """
import os, resource, sys, threading, time
from pathlib import Path
from mlflow_perf.recorders.profile import live
place = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
def measure():
    time.sleep(0.5)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * 4096 >> 20
    print(len(os.listdir("/proc/self/task")), size - before < 30, flush=True)
before = int(Path("/proc/self/statm").read_text().split()[0]) * 4096 >> 20
live.join(place)
if os.fork():
    os.wait()
measure()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("rate_hz", "line"), [(None, "1 True"), (50.0, "2 False")])
def test_the_addresses_that_ulimit_leaves_are_the_jobs(
    tmp_path: Path, rate_hz: float | None, line: str
) -> None:
    """A job that just fits within its `ulimit -v` had a MemoryError; a rate overrides that."""
    place = spool.create(tmp_path)
    live.offer(place, rate_hz)
    live.withdraw()
    command = [sys.executable, "-c", _LIMITED, str(place)]
    output = subprocess.check_output(command, text=True, timeout=60)
    assert output.splitlines() == [line] * 2  # of the child, and of its parent


def test_what_a_wrapper_forks_is_not_sampled(tmp_path: Path) -> None:
    """Its own helpers are no part of the command, and neither is what it was before its start."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom mlflow_perf.recorders.profile import live\n"
        "live.offer(Path(sys.argv[1]), None, command_of=os.getpid())\n"
        "pid = os.fork()\nif pid == 0:\n    os._exit(live._live.sampler is not None)\n"
        "print(os.waitpid(pid, 0)[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


_FORKS = """\
import os, sys, time
from pathlib import Path
from mlflow_perf.recorders.profile import live
folder = Path(sys.argv[1])
live.offer(folder, None)

def tell(what):
    sys.stdout.write(f"{what} {live._live.sampler is not None} {len(sys._current_frames())}\\n")
    sys.stdout.flush()

if os.fork() == 0:
    tell("child")
    if os.fork() == 0:
        tell("grandchild")
        while live._live.sampler is None:
            time.sleep(0.01)
        tell("grandchild")
    else:
        os.wait()
    os._exit(0)
os.wait()
"""


def test_a_forked_child_begins_to_sample_after_its_first_tenth_of_a_second(tmp_path: Path) -> None:
    """Those of a server or a test runner end before, and pay nothing; their children are known."""
    command = [sys.executable, "-c", _FORKS, str(tmp_path)]
    output = subprocess.check_output(command, text=True, timeout=90)
    assert output == "child False 1\ngrandchild False 1\ngrandchild True 1\n"


@pytest.mark.parametrize(("is_main", "lines"), [(True, 1), (False, 0)])
def test_only_the_main_interpreter_says_that_it_has_no_stacks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_main: bool, lines: int
) -> None:
    """Each interpreter of a process has a copy of this module; the line came twice."""
    monkeypatch.setattr(live, "find_obstacle", lambda: "a process with sub-interpreters")
    monkeypatch.setattr(live, "is_main_interpreter", is_main)
    assert live.end(live.begin(None, None)).cells == []
    assert len(caplog.records) == lines


@pytest.mark.parametrize(
    ("why", "lines"),
    [("can't start new thread", 1), ("can't create new thread at interpreter shutdown", 0)],
)
def test_a_process_that_ends_as_it_begins_lacks_no_stacks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str, lines: int
) -> None:
    """The main thread of a command may be over before the sampler is loaded beside it."""

    def start(_: object) -> None:
        raise RuntimeError(why)

    monkeypatch.setattr("mlflow_perf.recorders.profile.live.StackSampler.start", start)
    live.end(live.begin(None, None))
    assert len(caplog.records) == lines
    assert live._live.sampler is None


def test_a_process_below_a_session_says_nothing_where_it_has_no_room_for_a_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Its standard error is the job's own."""

    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("mlflow_perf.recorders.profile.live.StackSampler.start", start)
    place = spool.create(tmp_path)
    live.offer(place, None)
    live.withdraw()
    with caplog.at_level("INFO"):
        live.join(place)
        live._end_joined()
    assert caplog.records == []
    assert live._live.sampler is None


_STATUS = Path("/proc/self/status").read_text() if sys.platform == "linux" else ""

# It kills a process that starts a thread (`clone3`), as sandboxes for foreign code do.
_FILTERED = """
import ctypes, os, struct, sys, time
time.sleep(float(sys.argv[1]))
rows = [(0x20, 0, 0, 0), (0x15, 0, 1, 435), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)]
data = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(data))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
if libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0):
    sys.exit("no filters here")
if (child := os.fork()) == 0:
    time.sleep(0.5)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
if (child := os.fork()) == 0:  # `subprocess` may call `clone3` itself
    program = [sys.executable, "-c", "import time; time.sleep(0.5); print('as without')"]
    os.execv(program[0], program)
os.waitpid(child, 0)
"""


@pytest.mark.e2e
@pytest.mark.skipif("Seccomp_filters" not in _STATUS, reason="this kernel does not count filters")
@pytest.mark.parametrize("delay_sec", ["0", "0.6"])
def test_no_thread_of_ours_meets_a_filter_of_the_job(tmp_path: Path, delay_sec: str) -> None:
    """A process on which the job puts a filter, before or after our thread began, ends its way."""
    ended = _run_below(spool.create(tmp_path), _FILTERED, delay_sec)
    if b"no filters here" in ended.stderr:
        pytest.skip("no filters here")
    assert (ended.returncode, ended.stdout.split()) == (0, [b"3", b"as", b"without"]), ended.stderr
