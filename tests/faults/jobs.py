"""What the processes of the fault tests do. Each prints its run's id, then `go` when it is busy."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import mlflow_perf
from mlflow_perf.core import originals
from mlflow_perf.core.thread_list import list_threads
from mlflow_perf.publish.journal import Journal
from mlflow_perf.session.report import current

LONG = 60.0


def say(text: object) -> None:
    """Write a line to where the test reads it."""
    print(text, flush=True)


def flush() -> None:
    """Write the journal now, instead of within four seconds."""
    journal().flush()


def journal() -> Journal:
    """Return the journal of the present block."""
    session = current()
    assert session is not None
    assert session._recording is not None
    assert session._recording._journal is not None
    return session._recording._journal


def busy(seconds: float = 0.0, *, exit_code: int | None = None) -> None:
    """A job that goes well, or ends itself."""
    with mlflow_perf.report("job", interval=0.05) as perf:
        perf.add_counter("rows", 7)
        say(perf.run_id)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        say("go")
        if exit_code is not None:
            sys.exit(exit_code)


def raising() -> None:
    """A job that fails."""
    with mlflow_perf.report("job") as perf:
        say(perf.run_id)
        raise RuntimeError("the job's own")


def end_in_handler(*_: object) -> NoReturn:
    """Handle SIGTERM as a job does that decides on its own exit code."""
    say("handler ran")
    sys.exit(5)


def reads_its_settings_again(end: str) -> None:
    """A daemon that does so on SIGHUP, and then comes to its end, or to an error."""
    again = threading.Event()
    signal.signal(signal.SIGHUP, lambda *_: again.set())
    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        say("go")
        again.wait(LONG)
        time.sleep(0.2)
        if end == "error":
            sys.exit(7)
    say("handler ran")


def sleeping(how: str = "") -> None:
    """A job that sleeps, as its main thread, with threads, or in code that is not Python's."""
    if how == "own handler":
        signal.signal(signal.SIGTERM, end_in_handler)
    if how == "ignored":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with mlflow_perf.report("job", interval=0.05) as perf:
        perf.add_counter("rows", 7)
        say(perf.run_id)
        time.sleep(0.2)
        flush()
        if how == "native after a handler":
            before = signal.signal(signal.SIGTERM, end_in_handler)
            signal.signal(signal.SIGTERM, before)
        if how.startswith("native"):
            say("go")
            # A mutex taken twice: PyDLL's opposite lets other threads run; no signal gets it out.
            libc = ctypes.CDLL(None)
            mutex = ctypes.create_string_buffer(64)
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)
        elif how == "threads":
            threads = [threading.Thread(target=time.sleep, args=(LONG,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            say("go")
            threads[0].join()
        elif how == "ignored":
            say("go")
            time.sleep(1)
        elif how == "outgrow":
            say("go")
            hog()
        else:
            say("go")
            time.sleep(LONG)


def slow_handler() -> None:
    """A job with a handler of its own, which goes on after the signal for longer than it may."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        time.sleep(0.2)
        say("go")
        while not told.is_set():
            time.sleep(0.02)
        say("handler ran")
        time.sleep(LONG)


def leaving(how: str) -> None:
    """A job that ends without a word to anyone."""
    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        time.sleep(0.2)
        flush()
        say("go")
        if how == "os._exit":
            os._exit(3)
        sys.exit(int(how))


def killed_at(point: str, after: str = "") -> None:
    """A job that is killed while it starts: before a function is called, or after it has returned.

    Args:
        point: `module:function` or `module:Class.method`.
        after: Not empty for after it.
    """
    module, _, path = point.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, import_module(module))
    real = getattr(owner, name)

    def die(*args: object, **options: object) -> NoReturn:
        if after:
            real(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    setattr(owner, name, die)
    with mlflow_perf.report(f"killed at {path} {after}".rstrip()):
        say("begun")


def rank(seconds: float) -> None:
    """One rank of a job whose launcher gives no job id."""
    with mlflow_perf.report("ranks", interval=0.05) as perf:
        say(perf.run_id)
        perf.add_counter("rows", 7)
        time.sleep(seconds)


def in_a_loop(how: str) -> None:
    """A job that leaves SIGTERM to its event loop, or did so until the loop was over."""

    async def work() -> None:
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        if how == "is over":
            return
        say("go")
        await told.wait()
        say("handler ran")
        await asyncio.sleep(LONG if how == "goes on" else 0)

    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        time.sleep(0.2)
        asyncio.run(work())
        if how == "is over":
            say("go")
            time.sleep(LONG)
        sys.exit(6)


def serving() -> None:
    """A server that stops at a SIGTERM, restores what was there before, and sends it again."""
    import uvicorn

    async def answer(*_: object) -> None: ...

    class Server(uvicorn.Server):
        async def startup(self, *arguments: Any, **options: Any) -> None:
            await super().startup(*arguments, **options)
            say("go")

    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        time.sleep(0.2)
        Server(uvicorn.Config(answer, port=0, lifespan="off", log_level="error")).run()
        say("never")


def in_a_daemon_thread() -> None:
    """A block in a daemon thread that the interpreter's end cuts off."""
    begun = threading.Event()

    def block() -> None:
        with mlflow_perf.report("job", interval=0.05) as perf:
            say(perf.run_id)
            begun.set()
            time.sleep(LONG)

    threading.Thread(target=block, daemon=True).start()
    begun.wait(LONG)
    time.sleep(0.1)


def _child(_: int) -> int:
    assert current() is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with mlflow_perf.time("in the child"):
        return os.getpid()


def _list_lasting() -> set[str]:
    """Return the names of our threads that last as long as a block; a call's thread ends before."""
    return {t.name for t in list_threads() if t.name.startswith("mlflow-perf-")}


def with_children(method: str) -> None:
    """A pool that ends its workers by SIGTERM, and a child process that leaves the block."""
    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert os.getpid() not in pool.map(_child, range(8))
        if method == "fork":
            before = _list_lasting()
            pid = os.fork()
            if pid == 0:
                # The child's own stack sampler may have begun; the threads of its parent are gone.
                names = {thread.name for thread in list_threads()}
                assert names <= {"MainThread", "mlflow-perf-stacks"}
                assert perf.run_id is not None
                return  # leaves the block, in the child
            assert os.waitpid(pid, 0)[1] == 0
            pid = os.fork()
            if pid == 0:
                time.sleep(LONG)
            os.kill(pid, signal.SIGTERM)
            assert os.waitpid(pid, 0)[1] == signal.SIGTERM
            assert before <= _list_lasting()
        time.sleep(0.1)
    say(f"ended {os.getpid()}")


def nested() -> None:
    """A block within a block, and another one after it."""
    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        with mlflow_perf.report("inner"):
            say("go")
            time.sleep(LONG)


def hog() -> None:
    """Take memory until the kernel has had enough."""
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)))


def join_cgroup(folder: str, then: str, *args: str) -> None:
    """Enter a memory cgroup, and do something there."""
    Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    globals()[then](*args)


def fill(folder: str) -> None:
    """A job during which the disk of the journals fills up."""
    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        with Path(folder, "ballast").open("wb", buffering=0) as ballast:
            for size in (4096, 1):
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError:
                    continue
        say("full")
        for _ in range(3):
            time.sleep(0.1)
            flush()


def tidied() -> None:
    """A job whose folder of journals is deleted."""
    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        time.sleep(0.2)
        shutil.rmtree(os.environ["MLFLOW_PERF_DIR"])
        journal().flush(sync=True)
        say("go")
        time.sleep(LONG)


def restless() -> None:
    """A job during which the clock is set back, and processes and threads come and go."""
    real, begin = originals.time.time, time.monotonic()
    burn = "import time\nwhile time.process_time() < 0.15: pass"

    def shifted(seconds: float) -> float:
        return real() + seconds

    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        entered = time.monotonic()
        for number in range(4):
            originals.time.time = partial(shifted, (-3600, 7200, -60, 0)[number])
            subprocess.run([sys.executable, "-S", "-E", "-c", burn], check=True)
            thread = threading.Thread(target=time.sleep, args=(0.05,))
            thread.start()
            thread.join()
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        say(f"took {time.monotonic() - entered:.3f} s")
    say(f"whole {time.monotonic() - begin:.3f} s")


def outliving(file: str) -> None:
    """A block whose process lives on after it."""
    with mlflow_perf.report("late", interval=0.05):
        time.sleep(0.1)
    say("reported")
    while not Path(file).exists():
        time.sleep(0.02)


def waits_for(file: str) -> None:
    """A job that ends when a file is there."""
    with mlflow_perf.report("job", interval=0.05) as perf:
        say(perf.run_id)
        say("go")
        while not Path(file).exists():
            time.sleep(0.02)
    (node,) = perf.document.nodes.values()
    rows = len(node.reports["timestamp"])
    say(f"took {perf.summary['duration_sec']:.3f} with {rows} rows")


def autologged(file: str) -> None:
    """A job that MLflow has ended the run of when it says "go", and that reports it then."""
    import mlflow

    end = mlflow.MlflowClient.set_terminated
    began = 0.0

    def end_and_wait(*args: object) -> None:
        nonlocal began
        end(*args)  # type: ignore[arg-type]
        say("go")
        while not Path(file).exists():
            time.sleep(0.02)
        began = time.monotonic()

    mlflow.MlflowClient.set_terminated = end_and_wait  # type: ignore[assignment,method-assign]
    mlflow_perf.autolog(name="job")
    with mlflow.start_run() as run:
        say(run.info.run_id)
    say(f"waited {time.monotonic() - began:.1f} s")


def failing_source() -> None:
    """A job with a source that fails at each reading."""
    from mlflow_perf.readers.memory import MemoryReader

    def read(*_: object) -> None:
        raise OSError("gone")

    MemoryReader.read = read  # type: ignore[assignment,method-assign]
    busy(0.3)


def command_without_stdout(*argv: str) -> None:
    """The command line, started with a closed standard output."""
    os.close(1)
    sys.stdout = None  # as the interpreter has it then
    command(*argv)


def command(*argv: str) -> None:
    """The command line."""
    from mlflow_perf.cli import main

    main(list(argv))
