"""Real jobs, measured by us and by `time -v`: do CPU, wall time and memory agree?

`python -m benchmarks jobs` runs each job as `mlflow-perf run -- time -v COMMAND`, with `report()`
around its body, and with it as a decorator. In the first, all figures are compared with those of
`time -v`. In the others, CPU and wall time are compared with the kernel's `getrusage` around the
body, from which `time -v` has its figures too, less what our own threads used meanwhile; the peak
of the memory is compared with that of the job without us. `time -v` knows the largest
of several processes, where we add them up. Each figure is the median of `--times` runs. A job whose
packages are missing is named and left out.

It needs GNU time (Debian: `time`), and `pip install lightgbm xgboost 'dask[distributed]' papermill
ipykernel metaflow`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

GNU_TIME = "/usr/bin/time"
MODES = ("mlflow-perf run", "report()", "decorator")

# Imports are in the body: the block is all but the start of Python.
BODIES = {
    "LightGBM": """
    import lightgbm, numpy
    x = numpy.random.default_rng(0).random((50_000, 30))
    data = lightgbm.Dataset(x, x[:, 0] + x[:, 1] * x[:, 2])
    lightgbm.train({"num_threads": 2, "verbose": -1, "num_leaves": 63}, data, 60)
""",
    "XGBoost": """
    import numpy, xgboost
    x = numpy.random.default_rng(0).random((50_000, 30))
    data = xgboost.DMatrix(x, x[:, 0] + x[:, 1] * x[:, 2])
    xgboost.train({"nthread": 2, "max_depth": 7}, data, 40)
""",
    "Dask": """
    import dask.array
    from dask.distributed import Client, LocalCluster
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster):
            x = dask.array.random.random((8_000, 2_000), chunks=(1_000, 2_000))
            for _ in range(4):
                (x.T @ x).sum().compute()
""",
    "notebook": """
    import numpy, pandas
    frame = pandas.DataFrame(numpy.random.default_rng(0).random((2_000_000, 8)))
    for _ in range(3):
        frame.sort_values(0).groupby((frame[1] * 1000).astype(int)).mean()
""",
    "Metaflow": """
    import numpy
    x = numpy.random.default_rng(0).random((2_000, 2_000))
    for _ in range(6):
        numpy.linalg.svd(x[:900, :900])
""",
}
PACKAGES = {
    "LightGBM": ("lightgbm",),
    "XGBoost": ("xgboost",),
    "Dask": ("dask", "distributed"),
    "notebook": ("papermill", "ipykernel", "pandas"),
    "Metaflow": ("metaflow",),
}
# Says what the kernel counted over the body, as `time -v` does over a process.
PRELUDE = """
import json, os, resource, sys, time
from contextlib import contextmanager

def count():
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF,
                                                       resource.RUSAGE_CHILDREN))
    cpu = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    if "mlflow_perf" in sys.modules:
        from mlflow_perf.core.own_cost import own_cpu_sec
        cpu -= own_cpu_sec()
    return cpu, time.perf_counter()

@contextmanager
def counted():
    cpu, wall = count()
    yield
    more_cpu, end = count()
    truth = {"cpu": more_cpu - cpu, "wall": end - wall}
    open(os.environ["TRUTH"], "w").write(json.dumps(truth))

def body():
"""
WRAPPERS = {
    "bare": "with counted():\n    body()\n",
    "report()": "import mlflow_perf\nwith mlflow_perf.report('job'), counted():\n    body()\n",
    "decorator": "import mlflow_perf\nmlflow_perf.report('job')(counted()(body))()\n",
}


@dataclass(frozen=True)
class Figures:
    """What a job used.

    Attributes:
        cpu: CPU seconds.
        wall: Seconds.
        mem: Peak of its memory, MB.
    """

    cpu: float
    wall: float
    mem: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="runs of each kind; default 3")
    parser.add_argument("--only", choices=BODIES, action="append", help="only this job")
    options = parser.parse_args()
    if not Path(GNU_TIME).exists():
        print(f"{GNU_TIME} is missing: install GNU time (Debian: apt-get install time).")
        return
    print("| job | as | CPU s, `time -v` | ours | | wall s | ours | | peak MB | ours | |")
    print("| --- | --- | " + " | ".join(["---:"] * 9) + " |")
    for job in options.only or BODIES:
        missing = [name for name in PACKAGES[job] if find_spec(name) is None]
        if missing:
            print(f"| {job} | left out: {', '.join(missing)} is not installed |")
            continue
        for mode, truth, ours in measure(job, options.times):
            cells = [f"| {job} | {mode}"]
            for key in ("cpu", "wall", "mem"):
                true, told = getattr(truth, key), getattr(ours, key)
                cells.append(f"{true:.2f} | {told:.2f} | {100 * (told / true - 1):+.1f}%")
            print(" | ".join(cells) + " |", flush=True)


def measure(job: str, times: int) -> Iterator[tuple[str, Figures, Figures]]:
    """Yield each way of wrapping a job, the truth and what we tell, as medians."""
    found: dict[str, list[tuple[Figures, Figures]]] = {mode: [] for mode in MODES}
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="perf-jobs-") as folder:
            place = Path(folder)
            timed, ours = run_under_wrapper(job, place)
            found[MODES[0]].append((timed, ours))
            for mode in MODES[1:]:
                found[mode].append(run_wrapped(job, mode, place, timed.mem))
    for mode, pairs in found.items():
        sides = zip(*pairs, strict=True)
        truth, ours = (
            Figures(
                *(statistics.median(getattr(f, k) for f in side) for k in ("cpu", "wall", "mem"))
            )
            for side in sides
        )
        yield mode, truth, ours


def make_command(job: str, mode: str, folder: Path) -> list[str]:
    """Write a job's files and return the command that runs it."""
    source = PRELUDE + BODIES[job] + "\n"
    if job == "notebook":
        cells = [source, WRAPPERS[mode]]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {"kernelspec": kernel},
            "cells": [
                {"id": str(i), "cell_type": "code", "metadata": {}, "outputs": [], "source": cell,
                 "execution_count": None}
                for i, cell in enumerate(cells)
            ],
        }  # fmt: skip
        (folder / "job.ipynb").write_text(json.dumps(notebook))
        return [sys.executable, "-m", "papermill", "--no-progress-bar", "job.ipynb", "out.ipynb"]
    if job == "Metaflow":
        step = WRAPPERS[mode].replace("\n", "\n        ")
        flow = (
            f"{source}\nfrom metaflow import FlowSpec, step\n\nclass JobFlow(FlowSpec):\n"
            f"    @step\n    def start(self):\n        {step}\n        self.next(self.end)\n\n"
            "    @step\n    def end(self):\n        pass\n\n"
            "if __name__ == '__main__':\n    JobFlow()\n"
        )
        (folder / "job.py").write_text(flow)
        return [sys.executable, "job.py", "--quiet", "run"]
    guarded = "\nif __name__ == '__main__':\n    " + WRAPPERS[mode].replace("\n", "\n    ")
    (folder / "job.py").write_text(source + guarded + "\n")
    return [sys.executable, "job.py"]


def run_wrapped(job: str, mode: str, folder: Path, peak_mb: float) -> tuple[Figures, Figures]:
    """Run a job that reports by itself; return what its body counted, and what we tell."""
    run(make_command(job, mode, folder), folder)
    counted = json.loads((folder / "truth.json").read_text())
    return Figures(**counted, mem=peak_mb), read_report(folder)


def run_under_wrapper(job: str, folder: Path) -> tuple[Figures, Figures]:
    """Run `mlflow-perf run -- time -v COMMAND`; return what either tells."""
    command = make_command(job, "bare", folder)
    timed = [GNU_TIME, "-v", "-o", "time.txt", *command]
    run([sys.executable, "-m", "mlflow_perf", "run", "--name", "command", "--", *timed], folder)
    return read_time(folder), read_report(folder)


def run(command: list[str], folder: Path) -> None:
    """Run a command in a folder, with a store of its own.

    Raises:
        SystemExit: When it fails; its output is shown.
    """
    for name in ("store", "mlruns"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "store").mkdir()
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/store/mlflow.db",
        "MLFLOW_PERF_QUIET": "true",
        "TRUTH": str(folder / "truth.json"),
        "USER": "benchmark",
        "METAFLOW_HOME": str(folder),
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )


def read_time(folder: Path) -> Figures:
    """Return what `time -v` wrote."""
    text = (folder / "time.txt").read_text()

    def read(label: str) -> str:
        found = re.search(rf"{re.escape(label)}.*?: ([\d.:]+)$", text, re.MULTILINE)
        return found[1] if found else "nan"

    wall = 0.0
    for part in read("Elapsed (wall clock) time (h:mm:ss or m:ss)").split(":"):
        wall = 60 * wall + float(part)
    cpu = float(read("User time (seconds)")) + float(read("System time (seconds)"))
    return Figures(cpu, wall, float(read("Maximum resident set size (kbytes)")) / 1024)


def read_report(folder: Path) -> Figures:
    """Return what the newest report in the folder tells.

    Raises:
        SystemExit: When the job left none.
    """
    found = list(folder.glob("**/perf/node-0.json"))
    if not found:
        raise SystemExit(f"The job left no report below {folder}; it ran with exit code 0.")
    newest = max(found, key=lambda path: path.stat().st_mtime)
    [node] = json.loads(newest.read_text())["nodes"].values()
    summary = node["summary"]
    return Figures(
        summary["job_cpu_hours"] * 3600, summary["duration_sec"], summary["job_max_mem_mb"]
    )


if __name__ == "__main__":
    main()
