"""What the switch `MLFLOW_PERF_AUTOLOG` costs: `import mlflow`, each run, and many short runs.

`python -m benchmarks autolog` starts each process several times with and without the switch, in
turn, and keeps the least CPU time of each. The runs go to a fresh sqlite store.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

IMPORT_LIMIT_MS = 5.0
RUN_LIMIT_MS = 1.0
ROUNDS = 7

IMPORT = """
import json, time
began = time.process_time()
import mlflow
print(json.dumps(1e3 * (time.process_time() - began)))
"""
# `log_batch` and `log_artifacts` store our reports only: the script itself logs nothing.
RUNS = """
import functools, gc, json, os, resource, sys, time
import mlflow
from mlflow.tracking import fluent
from mlflow_perf.core.own_cost import own_cpu_sec

stored_ms = 0.0

def count_time(function):
    @functools.wraps(function)
    def counted(*arguments, **named):
        global stored_ms
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            stored_ms += 1e3 * (time.thread_time() - began)
    return counted

for name in ("log_batch", "log_artifacts"):
    setattr(mlflow.MlflowClient, name, count_time(getattr(mlflow.MlflowClient, name)))

def look():
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return {
        "cpu_ms": 1e3 * time.process_time(),
        "stored_ms": stored_ms,
        "own_ms": 1e3 * own_cpu_sec(),
        "mb": pages * resource.getpagesize() / 2**20,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }

def run(count):
    for _ in range(count):
        with mlflow.start_run():
            pass
    if os.environ.get("MLFLOW_PERF_AUTOLOG"):
        from mlflow_perf.session import autolog
        if autolog._autolog is not None:
            autolog._autolog._queue.drain(100)

count = int(sys.argv[1])
run(30)
before = look()
run(count)
after = look()
print(json.dumps({key: after[key] - before[key] for key in after}))
"""


def main() -> int:
    """Print the rows; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many short runs; 0 for none")
    parser.add_argument("--rounds", type=int, default=7, help="how many imports; 0 for none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        is_met = [
            options.rounds == 0 or _compare_imports(folder, options.rounds),
            options.runs == 0 or _compare_runs(folder, options.runs),
        ]
    return int(not all(is_met))


def _compare_imports(folder: str, rounds: int) -> bool:
    """Print the CPU time of `import mlflow`; return whether the target is met."""
    rows = [
        [json.loads(_run(IMPORT, folder, **environ)) for environ in (_BARE, {}, _ON)]
        for _ in range(rounds)
    ]
    bare_ms, off_ms, on_ms = (min(column) for column in zip(*rows, strict=True))
    print(f"import mlflow without the plugin, CPU: {bare_ms:.0f} ms")
    print(f"with it, switched off: {off_ms - bare_ms:+.1f} ms")
    print(f"with it, switched on: {on_ms - bare_ms:+.1f} ms (at most {IMPORT_LIMIT_MS})")
    return bool(on_ms - bare_ms <= IMPORT_LIMIT_MS)


def _compare_runs(folder: str, count: int) -> bool:
    """Print the cost of many short runs and what they leave; return whether the target is met."""
    off = json.loads(_run(RUNS, folder, str(count)))
    on = json.loads(_run(RUNS, folder, str(count), **_ON))
    more_ms = (on["cpu_ms"] - off["cpu_ms"]) / count
    stored_ms = on["stored_ms"] / count
    ours_ms = more_ms - stored_ms
    print(f"{count} short runs by MLflow alone, CPU of each: {off['cpu_ms'] / count:.1f} ms")
    print(f"the same with reports: {more_ms:+.1f} ms")
    print(f"of it MLflow's log_batch and log_artifacts, which store them: {stored_ms:.1f} ms")
    print(f"of it ours, beyond what MLflow takes: {ours_ms:.1f} ms (at most {RUN_LIMIT_MS})")
    own_ms = on["own_ms"] / count - stored_ms
    print(f"  in our own code: {own_ms:.1f} ms")
    print(f"  the rest, in MLflow's start and end of a run: {ours_ms - own_ms:+.1f} ms")
    for name in ("mb", "descriptors", "threads"):
        print(f"growth of {name} meanwhile: {on[name]:+.1f}; without reports {off[name]:+.1f}")
    return bool(ours_ms <= RUN_LIMIT_MS)


_ON = {"MLFLOW_PERF_AUTOLOG": "true", "MLFLOW_PERF_QUIET": "true"}
# MLflow loads no plugin whose entry point is hidden from it.
_BARE = {"BENCHMARK_HIDES_PLUGIN": "1"}
_HIDE = """
import os
from importlib import metadata
if os.environ.get("BENCHMARK_HIDES_PLUGIN"):
    found = metadata.entry_points
    metadata.entry_points = lambda **chosen: metadata.EntryPoints(
        point for point in found(**chosen) if not point.value.startswith("mlflow_perf")
    )
"""


def _run(code: str, folder: str, *arguments: str, **environ: str) -> str:
    """Run a script in a fresh process and return what it printed."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    given |= {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_PERF_DIR": str(Path(folder) / "state"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    done = subprocess.run(
        [sys.executable, "-c", _HIDE + code, *arguments], cwd=folder, env=given | environ,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
