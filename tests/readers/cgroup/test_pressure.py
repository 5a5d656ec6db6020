"""Pressure stall information on recorded files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.readers import trees
from tests.readers.trees import (
    put_all,
    read,
)

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.cgroup.groups import Groups
from mlflow_perf.readers.cgroup.pressure import PressureReader


def psi(total_us: int) -> str:
    """Return a pressure file."""
    line = f"avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}"
    return f"some {line}\nfull {line}"


def test_pressure_is_the_nodes_or_that_of_the_jobs_own_group(tmp_path: Path) -> None:
    """A container's own stalls count; without a group of its own, the node's."""
    proc = trees.docker_v2(tmp_path)
    put_all(proc / "pressure", {"cpu": psi(9_000_000), "memory": psi(1), "io": psi(2)})
    assert read(PressureReader(proc))["cpu_stall_sec"] == 9.0
    group = Groups(proc=proc, root=tmp_path).find("cpu")
    assert read(PressureReader(proc, group=group))["cpu_stall_sec"] == 9.0
    put_all(tmp_path / "sys/fs/cgroup", {"cpu.pressure": psi(500_000), "io.pressure": psi(0)})
    report = read(PressureReader(proc, group=group))
    assert report == {"cpu_stall_sec": 0.5, "io_stall_sec": 0.0}


def test_a_kernel_without_pressure_figures(tmp_path: Path) -> None:
    """Without the files, or with others' content in them, the source is not there."""
    with pytest.raises(SourceUnavailableError):
        PressureReader(tmp_path)
    put_all(tmp_path / "pressure", {"cpu": "", "memory": "nonsense"})
    with pytest.raises(SourceUnavailableError):
        PressureReader(tmp_path)
