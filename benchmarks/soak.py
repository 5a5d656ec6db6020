"""Whether a process that reports for long keeps its size, with everything switched on.

`python -m benchmarks soak --minutes 60` runs one process with one long report: curves are sent
live, stacks sampled, and the journal is on disk. Meanwhile short MLflow runs come and go under
autologging, each with operations and a loop with parts, and now and then a child process. The
benchmark prints memory, descriptors, threads, children and files on the way, and compares the last
quarter with the second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MOST_MORE_MB_PER_HOUR = 10.0
LOOKS = 40

JOB = """
import gc, json, multiprocessing, os, resource, sys, threading, time
from pathlib import Path
import mlflow, mlflow_perf

state, seconds, every = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])

def work(count=20_000):
    return sum(i * i for i in range(count))

def look(runs, began):
    gc.collect()
    sizes = []
    for path in state.rglob("*"):
        try:
            if path.is_file():
                sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue  # a short run has just ended
    print(json.dumps({
        "minutes": (time.monotonic() - began) / 60,
        "runs": runs,
        "mb": int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20,
        "blocks": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(open(f"/proc/self/task/{os.getpid()}/children").read().split()),
        "files": len(sizes),
        "files_kb": sum(sizes) / 1024,
    }), flush=True)

def batches():
    for _ in range(20):
        time.sleep(0.005)
        yield 1

def trial(number):
    with mlflow.start_run(nested=True):
        mlflow.log_metric("loss", 1 / (number + 1))
        for _ in mlflow_perf.steps(batches()):
            with mlflow_perf.part("forward"):
                work()
        with mlflow_perf.time("save"):
            work()
    if number % 20 == 0:
        child = multiprocessing.get_context("spawn").Process(target=work)
        child.start()
        child.join()

if __name__ == "__main__":
    began, runs, next_look = time.monotonic(), 0, 0.0
    with mlflow_perf.report("soak", interval=0.2, live=True):
        while time.monotonic() < began + seconds:
            trial(runs)
            runs += 1
            time.sleep(0.3)
            if time.monotonic() - began >= next_look:
                look(runs, began)
                next_look += every
"""


def main() -> int:
    """Print how the process grows; return 1 where something grows for ever."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long it runs; default 2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        looks = _run(Path(folder), 60 * options.minutes)
    quarter = len(looks) // 4
    early, late = looks[quarter : 2 * quarter], looks[-quarter:]
    hours = (late[0]["minutes"] - early[0]["minutes"]) / 60
    runs = late[0]["runs"] - early[0]["runs"]
    print(f"{looks[-1]['runs']:.0f} runs in {looks[-1]['minutes']:.1f} minutes")
    # How many threads there are at a moment depends on what is being sent: the most count.
    more = {
        key: typical(look[key] for look in late) - typical(look[key] for look in early)
        for typical, keys in (
            (statistics.median, ("mb", "blocks", "files", "files_kb")),
            (max, ("descriptors", "threads", "children")),
        )
        for key in keys
    }
    for key, value in more.items():
        print(f"growth of {key} from the second quarter to the last: {value:+.1f}")
    per_hour = more["mb"] / hours
    print(f"memory {per_hour:+.1f} MB an hour, {1024 * more['mb'] / runs:+.1f} kB a run")
    is_flat = per_hour <= MOST_MORE_MB_PER_HOUR * max(1.0, 0.5 / hours)
    return int(not (is_flat and more["descriptors"] <= 2 and more["threads"] <= 1))


def _run(folder: Path, seconds: float) -> list[dict[str, float]]:
    """Run the job in a fresh process and store; return what it printed, and print it on the way."""
    script, state = folder / "soak.py", folder / "state"
    script.write_text(JOB, "utf-8")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environ |= {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_PERF_AUTOLOG": "true",
        "MLFLOW_PERF_DIR": str(state),
        "MLFLOW_PERF_QUIET": "true",
    }
    state.mkdir()
    command = [sys.executable, str(script), str(state), str(seconds), str(seconds / LOOKS)]
    looks: list[dict[str, float]] = []
    with subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            looks.append(json.loads(line))
            print("  ".join(f"{key} {value:,.1f}" for key, value in looks[-1].items()), flush=True)
    if process.returncode != 0 or len(looks) < 8:
        raise SystemExit(f"The job ended with {process.returncode} after {len(looks)} looks.")
    return looks


if __name__ == "__main__":
    sys.exit(main())
