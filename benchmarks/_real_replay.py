"""A workflow of real tasks under a memory limit, by the runner: presets against learned sizes.

Nine processes of three components hold 60 to 320 MB for some seconds each. Their presets are 600 MB
and a CPU, and `pipeline run --memory 1000` starts what fits. The first run uses the presets, the
second one learned sizes (`--size learned`) with the first as its history. One of its tasks needs
far more than its component ever did. Where a control group for memory can be made, the kernel kills
that task, and it finishes with a later try.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from mlflow_perf.pipelines.memory_group import limit_memory

MEMORY_MB = 1000
PRESET_MB = 600
PEAKS_MB = {"small": 60, "medium": 140, "large": 320}
SECONDS = 4

_SCRIPT = """
import sys, time
held = bytearray(b"x") * (int(sys.argv[1]) << 20)
time.sleep(float(sys.argv[2]))
"""
_PIPELINE = """
import os
from azure.ai.ml import command, dsl

def eat(name, mb):
    return command(
        name=name, code="src", environment="x@latest",
        command=f"python eat.py {{mb}} {seconds}",
    )

@dsl.pipeline(name="sized", experiment_name="sized")
def sized():
    for i in range(3):
        for name, mb in {peaks}.items():
            more = 160 if os.environ.get("HUNGRY") and (i, name) == (2, "medium") else 0
            step = eat(name, mb + 2 * i + more)()
            step.name = f"{{name}}_{{i}}"
"""


def run_pipeline(folder: Path, size: str, **environ: str) -> tuple[float, list[Any]]:
    """Run the workflow and return its makespan in seconds, and the runs of its steps."""
    command = [
        sys.executable, "-m", "mlflow_perf", "pipeline", "run", str(folder / "flow.py"), "--json",
        "--to", str(folder / "store"), "--environments", "here",
        "--size", size, "--memory", str(MEMORY_MB),
    ]  # fmt: skip
    environ = {**os.environ, **environ, "MLFLOW_PERF_PROFILE": "0"}
    done = subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    print("\n".join(line for line in done.stderr.splitlines() if ": size of" in line))
    client = MlflowClient(f"sqlite:///{folder}/store/mlflow.db")
    runs = [client.get_run(step["run_id"]) for step in json.loads(done.stdout)["steps"]]
    ends = [run.info.end_time for run in runs]
    return (max(ends) - min(run.info.start_time for run in runs)) / 1000.0, runs


def write_workflow(folder: Path) -> None:
    """Write the pipeline, its script and the presets into a folder."""
    (folder / "src").mkdir()
    (folder / "src" / "eat.py").write_text(_SCRIPT)
    (folder / "flow.py").write_text(_PIPELINE.format(peaks=PEAKS_MB, seconds=SECONDS))
    presets = {key: {"memory_mb": PRESET_MB, "cpus": 1} for key in PEAKS_MB}
    (folder / "presets.json").write_text(json.dumps(presets))


def replay_real() -> int:
    """Print both makespans, the kills and the attempts; return 1 if a task did not finish."""
    with limit_memory(100.0) as group:
        enforced = "enforced by the kernel" if group else "not enforced: no control group here"
    with tempfile.TemporaryDirectory(prefix="replay-") as name:
        folder = Path(name)
        write_workflow(folder)
        before, first = run_pipeline(folder, str(folder / "presets.json"))
        after, second = run_pipeline(folder, "learned", HUNGRY="1")
    print(f"{len(second)} tasks, {MEMORY_MB} MB, sizes {enforced}: presets {before:.1f} s, "
          f"learned {after:.1f} s ({100 * (after / before - 1):+.0f}%)")  # fmt: skip
    for run in second:
        if run.data.tags.get("mlflow_perf.attempts", "1") != "1":
            sizes = run.data.tags["mlflow_perf.sizes_mb"].replace(",", ", then ")
            print(f"{run.info.run_name}: {run.info.status} with {sizes} MB")
    return int(any(run.info.status != "FINISHED" for run in (*first, *second)))
