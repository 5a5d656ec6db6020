"""A process that lives long: block after block, nothing of one is left after it."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mlflow_perf
import mlflow_perf.publish.dispatch
from mlflow_perf.core.thread_list import list_threads

if TYPE_CHECKING:
    from tests.faults.conftest import Fault

LONG = pytest.mark.timeout(900)


def left() -> tuple[int, int, int]:
    """Return the threads, the open descriptors and the memory blocks of this process."""
    gc.collect()
    return len(list_threads()), len(os.listdir("/proc/self/fd")), sys.getallocatedblocks()


def run(blocks: int) -> None:
    """Report that many blocks, each with an operation."""
    for _ in range(blocks):
        with mlflow_perf.report("train") as perf, perf.time("step"):
            pass


@pytest.mark.parametrize(
    ("warm_up", "blocks", "most"),
    [
        # A block that stays costs hundreds of objects; the interpreter's own free lists and caches
        # still grow by about one per block here, and by none after the first thousand.
        pytest.param(60, 200, 5.0, id="some"),
        pytest.param(1000, 9000, 0.05, id="10,000", marks=[pytest.mark.load, LONG]),
    ],
)
def test_many_blocks_leak_nothing(
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    warm_up: int,
    blocks: int,
    most: float,
) -> None:
    """No thread, no descriptor, no file and no object of Python's is left by a block."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    monkeypatch.setattr(mlflow_perf.publish.dispatch, "write_node", lambda delivery, **_: "a run")
    run(warm_up)
    threads, handles, memory = left()
    run(blocks)
    threads_after, handles_after, memory_after = left()
    assert (threads_after, handles_after) == (threads, handles)
    assert os.listdir(os.environ["MLFLOW_PERF_DIR"]) == []
    growth = (memory_after - memory) / blocks
    assert growth < most
    what = f"{warm_up + blocks:,} blocks in one process"
    fault(what, f"no thread or handle; {growth:+.2f} objects a block", "none")
