"""One sampler per node sees the GPUs of all ranks on it, whatever each rank may use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.readers.gpu.stand_ins import FakeNvml, Named, list_names
from tests.readers.trees import (
    put,
)

from mlflow_perf.readers.gpu.gpu import (
    GpuReader,
    find_visible_gpus,
)
from mlflow_perf.readers.gpu.nvidia import open_nvidia
from mlflow_perf.readers.process.rank_environments import RankEnvironments

CUDA = ("CUDA_VISIBLE_DEVICES",)


LAUNCHER = 10


def process(proc: Path, pid: int, parent: int, **environ: str) -> None:
    """Write a process with its environment."""
    put(proc / str(pid) / "stat", f"{pid} (a b) c) S {parent} 1 1 0\n")
    put(proc / str(pid) / "environ", "".join(f"{k}={v}\0" for k, v in environ.items()))


def rank(proc: Path, pid: int, number: int, parent: int = LAUNCHER, **environ: str) -> None:
    """Write a rank that Open MPI started."""
    process(proc, pid, parent, OMPI_COMM_WORLD_RANK=str(number), **environ)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a procfs with a launcher, its two ranks, and a stranger's rank."""
    process(tmp_path, 1, 0)
    process(tmp_path, LAUNCHER, 1)
    rank(tmp_path, 11, 0, CUDA_VISIBLE_DEVICES="0")
    rank(tmp_path, 12, 1, CUDA_VISIBLE_DEVICES="1")
    rank(tmp_path, 99, 7, parent=1, CUDA_VISIBLE_DEVICES="5")
    return tmp_path


def seen(proc: Path, *, root: int | None = LAUNCHER, **own: str) -> list[str] | None:
    """Return the devices that rank 0, which samples, takes for the job's."""
    environ = {"OMPI_COMM_WORLD_RANK": "0", **own}
    others = RankEnvironments(root, proc=proc, environ=environ).find_with_any
    return list_names(find_visible_gpus(Named, CUDA, environ, others))


def test_the_gpus_of_all_ranks_are_the_jobs(proc: Path) -> None:
    """One GPU for each rank: both are seen, the stranger's is not, and each counts once."""
    assert seen(proc, CUDA_VISIBLE_DEVICES="0") == ["0", "1"]
    rank(proc, 13, 2, CUDA_VISIBLE_DEVICES="1,0")
    assert seen(proc, CUDA_VISIBLE_DEVICES="0") == ["0", "1"]


def test_a_rank_that_sees_all_makes_all_the_jobs(proc: Path) -> None:
    """Where one rank is not narrowed, nothing is hidden from the job."""
    assert seen(proc) is None
    rank(proc, 13, 2)
    assert seen(proc, CUDA_VISIBLE_DEVICES="0") is None


def test_a_wrapper_that_narrows_its_child_counts_as_the_child(proc: Path) -> None:
    """`mpiexec wrap.sh`: the script itself was started without the variable, the rank with it."""
    rank(proc, 13, 2)
    rank(proc, 14, 2, parent=13, CUDA_VISIBLE_DEVICES="3")
    assert seen(proc, CUDA_VISIBLE_DEVICES="0") == ["0", "1", "3"]


def test_a_process_alone_looks_at_no_other(proc: Path) -> None:
    """Without a launcher above, the environment of this process is the whole truth."""
    assert seen(proc, root=None, CUDA_VISIBLE_DEVICES="0") == ["0"]
    assert RankEnvironments(LAUNCHER, proc=proc, environ={}).find_with_any(CUDA) == []


def test_a_forbidden_or_vanished_environment_is_passed_over(proc: Path) -> None:
    """What may not be read, or has ended, adds nothing."""
    (proc / "12" / "environ").unlink()
    (proc / "13").mkdir()
    assert seen(proc, CUDA_VISIBLE_DEVICES="0") == ["0"]


def test_a_rank_that_starts_late_adds_its_gpu(proc: Path) -> None:
    """The first GPU keeps its number; that of a rank that was not there yet comes after it."""
    environ = {"OMPI_COMM_WORLD_RANK": "0", "CUDA_VISIBLE_DEVICES": "GPU-bbbb"}
    (proc / "12" / "environ").unlink()
    others = RankEnvironments(LAUNCHER, proc=proc, environ=environ).find_with_any
    nvml = FakeNvml()
    reader = GpuReader(lambda: open_nvidia(nvml, environ, others=others))
    reader._source._patience_sec = 10.0
    report: dict[str, float] = {}
    reader.read(report)
    assert (report["gpu_count"], report["gpu0_utilization_pct"]) == (1.0, 40.0)
    rank(proc, 12, 1, CUDA_VISIBLE_DEVICES="0")
    reader.read(report)
    reader.close()
    assert report["gpu_count"] == 2.0
    assert (report["gpu0_utilization_pct"], report["gpu1_utilization_pct"]) == (40.0, 80.0)


@pytest.mark.e2e
def test_real_ranks() -> None:
    """A real process below this one, with a rank and a GPU of its own, is found."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "print(flush=True); input()"],
        env={**os.environ, "PMI_RANK": "1", "CUDA_VISIBLE_DEVICES": "GPU-1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    found = RankEnvironments(os.getpid(), environ={"PMI_RANK": "0"}).find_with_any(CUDA)
    child.communicate(b"\n")
    assert [environ[CUDA[0]] for environ in found] == ["GPU-1"]
