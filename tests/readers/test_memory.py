"""The memory reader on recorded files, and against psutil on this machine."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from tests.readers.trees import (
    put,
    read,
)

from mlflow_perf.readers.memory import MemoryReader


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return an empty procfs."""
    return tmp_path / "proc"


MEMINFO = (
    "MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  {} kB\nSwapTotal: {} kB\nSwapFree: {} kB\n"
)


def test_memory_in_use_is_what_is_not_available(proc: Path) -> None:
    """Memory and swap are reported in per cent of their totals."""
    put(proc / "meminfo", MEMINFO.format(250, 200, 150))
    assert read(MemoryReader(proc)) == {
        "mem_percent": 75.0, "host_mem_mb": 1000 / 1024, "swap_percent": 25.0
    }  # fmt: skip


def test_without_swap_there_is_no_swap_value(proc: Path) -> None:
    """A machine without swap reports no swap value, not zero."""
    put(proc / "meminfo", MEMINFO.format(250, 0, 0))
    assert "swap_percent" not in read(MemoryReader(proc))


def test_memory_agrees_with_psutil() -> None:
    """On this machine, memory in use agrees with psutil, the reference, within 1.5 points."""
    assert read(MemoryReader())["mem_percent"] == pytest.approx(
        psutil.virtual_memory().percent, abs=1.5
    )
