"""What the workers of real launchers record reaches the session: Parsl, Dask, joblib and MPI.

Each test runs a program that opens a session, lets a launcher's workers record, and writes the
collected figures. The launchers end their workers as they like; nothing waits for them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

_HEAD = """
import json, os, sys
from pathlib import Path
import mlflow_perf
from mlflow_perf import OperationMetrics
from mlflow_perf.recorders import spool
from mlflow_perf.integrations import proxystore as gather, startup
from mlflow_perf.recorders import current
from mlflow_perf.recorders.collect import collect_operations, collect_stacks
from mlflow_perf.recorders.profile import live

recorder = OperationMetrics()

def begin(spooled=False, folder=None):
    folder = folder or spool.create(Path.cwd())
    current.activate(recorder, folder=folder, spooled=spooled)
    gather.install()
    live.offer(folder, 100.0)
    startup.add_to_path("test")
    return folder

def finish(folder):
    startup.remove_from_path("test")
    live.withdraw()
    current.deactivate()
    collect_operations(folder, recorder)
    raws = collect_stacks(folder)
    functions = sorted({one.name for raw in raws for one in raw.functions})
    times = {name: stats.count for name, stats in recorder.aggregate_times().items()}
    figures = {
        "times": times, "counters": recorder.aggregate_counters(), "functions": functions,
    }
    Path("figures.json").write_text(json.dumps(figures))  # a launcher mixes what its ranks print
"""


def _run(body: str, folder: Path, *launcher: str) -> Any:
    """Run a program and return the figures that it collected."""
    program = folder / "program.py"
    program.write_text(_HEAD + textwrap.dedent(body))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        [*launcher, sys.executable, str(program)], cwd=folder, env=os.environ | {"PATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (folder / "figures.json").exists(), result.stdout + result.stderr
    return json.loads((folder / "figures.json").read_text())


def test_parsl_htex_workers(tmp_path: Path) -> None:
    """The records of HTEX workers, in which atexit does not fire, are in the session at once.

    One task resolves a proxy without importing mlflow_perf; the other times itself. The session
    ends before Parsl does, so that the workers still run.
    """
    pytest.importorskip("parsl")
    pytest.importorskip("proxystore")
    figures = _run(
        """
        import parsl
        from parsl.config import Config
        from parsl.executors import HighThroughputExecutor
        from parsl.providers import LocalProvider
        from proxystore.connectors.file import FileConnector
        from proxystore.store import Store

        @parsl.python_app
        def resolve(proxy):
            return len(proxy)

        @parsl.python_app
        def timed(number):
            import time
            import mlflow_perf
            with mlflow_perf.time("task", number):
                end = time.monotonic() + 0.2  # long enough to be sampled
                while time.monotonic() < end:
                    sum(range(100))
                return number

        if __name__ == "__main__":
            folder = begin()
            provider = LocalProvider(init_blocks=1, max_blocks=1)
            executor = HighThroughputExecutor(
                address="127.0.0.1", max_workers_per_node=2, provider=provider)
            with parsl.load(Config(executors=[executor], usage_tracking=0)):
                with Store("htex", FileConnector("store"), metrics=True, register=True) as store:
                    proxies = [store.proxy([0] * n, populate_target=False) for n in range(8)]
                    lengths = [f.result() for f in [resolve(p) for p in proxies]]
                    numbers = [f.result() for f in [timed(n) for n in range(8)]]
                    assert lengths == numbers == list(range(8))
                    own = store.metrics.aggregate_times()
                # Parsl resolves the proxies here too, when it looks at a task's arguments.
                for name in ("factory.resolve", "store.get"):
                    recorder.add_counter(f"own.{name}", None, own[name].count)
                finish(folder)
        """,
        tmp_path,
    )
    assert figures["times"]["task"] == 8
    assert "timed" in figures["functions"]
    for name in ("factory.resolve", "store.get"):
        assert figures["times"][name] == figures["counters"][f"own.{name}"] + 8
    assert figures["times"]["store.put"] == figures["times"]["store.proxy"] == 8


def test_dask_workers(tmp_path: Path) -> None:
    """The records of Dask's workers, which a nanny starts and kills, are in the session."""
    pytest.importorskip("distributed")
    figures = _run(
        """
        def work(number):
            import time
            import mlflow_perf
            with mlflow_perf.time("task", number):
                end = time.monotonic() + 0.1  # long enough to be sampled
                while time.monotonic() < end:
                    sum(range(100))
                return number

        if __name__ == "__main__":
            folder = begin()
            from distributed import Client, LocalCluster

            options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
            with LocalCluster(host="127.0.0.1", **options) as cluster, Client(cluster) as client:
                assert client.gather(client.map(work, range(12))) == list(range(12))
                finish(folder)
        """,
        tmp_path,
    )
    assert figures["times"] == {"task": 12}
    assert "work" in figures["functions"]


def test_joblib_workers(tmp_path: Path) -> None:
    """The functions of loky's workers, which outlive the session, are in its profile."""
    pytest.importorskip("joblib")
    figures = _run(
        """
        import time

        def work(number):
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                sum(range(100))
            return number

        if __name__ == "__main__":
            folder = begin()
            from joblib import Parallel, delayed

            assert Parallel(n_jobs=2)(delayed(work)(i) for i in range(4)) == [0, 1, 2, 3]
            finish(folder)
        """,
        tmp_path,
    )
    assert "work" in figures["functions"]


def test_mpi_ranks(tmp_path: Path) -> None:
    """The other ranks write to the folder; the first rank collects the records of all."""
    pytest.importorskip("mpi4py")
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if mpiexec is None:
        pytest.skip("no mpiexec in this environment (pip install mpich)")
    figures = _run(
        """
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        folder = begin() if world.rank == 0 else None
        folder = world.bcast(folder, root=0)
        if world.rank > 0:
            begin(spooled=True, folder=folder)
        for number in range(5):
            with mlflow_perf.time("step", number):
                pass
        recorder.add_counter("ranks", None, 1)
        world.Barrier()
        if world.rank == 0:
            finish(folder)
        """,
        tmp_path, mpiexec, "-n", "3",
    )  # fmt: skip
    assert (figures["times"], figures["counters"]) == ({"step": 15}, {"ranks": 3})
