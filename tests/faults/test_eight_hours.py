"""Eight hours of a training job in simulated time, with every recorder on: bounded and exact."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from mlflow_perf.model.samples import Function, Sample
from mlflow_perf.recorders.collect import (
    collect_operations,
    collect_stacks,
    collect_steps,
    collect_transfers,
)
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.profile.windows import StackWindow
from mlflow_perf.recorders.steps import StepMetrics
from mlflow_perf.recorders.steps.course import CourseRow
from mlflow_perf.recorders.steps.stats import LoopRecord, StepTimes
from mlflow_perf.recorders.transfers import NixlKVConnectorStats

SECONDS = 8 * 3600
BEGAN = 1_700_000_000.0
LOOKS = 20
MOST_FILES_BYTES = 6 << 20


class Recorders:
    """All recorders of a process, which write to one spool folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.operations, self.steps = OperationMetrics(), StepMetrics()
        self.transfers, self.stacks = NixlKVConnectorStats(), StackWindow(50.0)
        self.operations.spool_to(folder)
        self.steps.spool_to(folder)
        self.stacks.spool_to(folder)
        self.transfers.spool_to(folder, "kv")

    def live(self, second: int) -> None:
        """Record what one second of the job does."""
        at = BEGAN + second
        self.operations.add_time("load", f"shard {second % 40}", 0.5 * (1 + second % 8))
        self.operations.add_counter("rows", None, 3)
        self.operations.add_attribute("epoch", None, second // 3600)
        self.steps.add("step", _step(second), rank=0)
        self.stacks.add(_stack(second % 100), at, wall=1.0, cpu=0.5, count=50)
        self.transfers.record_figures((0.25, 0.125, 1 << 20, 4))

    def count_bytes(self) -> int:
        """Return the size of the spool files."""
        return sum(file.stat().st_size for file in self.folder.iterdir())


def _step(second: int) -> LoopRecord:
    piece = LoopRecord(began=BEGAN, first_ms=125.0)
    piece.step.add_all([125_000_000] * 8)
    piece.parts["input"] = StepTimes()
    piece.parts["input"].add_all([25_000_000] * 8)
    piece.course.append(CourseRow(BEGAN + second, 8, 1000.0, 125.0, {"input": 200.0}))
    return piece


def _stack(number: int) -> Sample:
    path = tuple(Function(f"f{number % (depth + 2)}", "job.py", depth, False) for depth in range(9))
    return Sample("main thread", number, path)


def test_what_all_recorders_keep_is_bounded_and_exact(tmp_path: Path) -> None:
    """Memory grows no more in the second half; the files are small and hold the sums of all.

    One object a second that is never freed would be `SECONDS / 2`.
    """
    job = Recorders(tmp_path)
    objects, sizes = [], []
    for second in range(SECONDS):
        job.live(second)
        if second % (SECONDS // LOOKS) == 0:
            gc.collect()
            objects.append(sys.getallocatedblocks())
            sizes.append(job.count_bytes())
    assert max(objects[LOOKS // 2 :]) < max(objects[: LOOKS // 2]) + SECONDS / 3
    assert max(sizes) < MOST_FILES_BYTES

    operations, steps = OperationMetrics(), StepMetrics()
    collect_operations(tmp_path, operations)
    collect_steps(tmp_path, steps)
    (stacks,) = collect_stacks(tmp_path)
    assert operations.as_dict() == job.operations.as_dict()
    unkeyed = operations.get_metrics(None)
    assert unkeyed is not None
    assert unkeyed.counters["rows"] == 3 * SECONDS
    assert steps.summary_metrics()["steps/step/count"] == 8 * SECONDS
    assert steps.summary_metrics() == pytest.approx(job.steps.summary_metrics())
    assert sum(wall for _, _, _, wall, _, _ in stacks.cells) == SECONDS
    assert collect_transfers(tmp_path)["kv"].num_successful_transfers == SECONDS
