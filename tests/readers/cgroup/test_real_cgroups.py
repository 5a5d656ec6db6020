"""Real control groups around real loads, where this machine lets one be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_perf.readers.cgroup.groups import Group, Groups

pytestmark = pytest.mark.e2e

# Enters its groups, then measures a load with the default readers, as a job does.
JOB = """
import json, sys, time
for path in json.loads(sys.argv[1]):
    with open(path + "/cgroup.procs", "w") as file:
        file.write("0")
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
collector = PerformanceMetricsCollector(interval=0.1)
collector.start()
{load}
collector.finalize()
print(json.dumps(collector.metrics()))
"""
BURN = "end = time.monotonic() + 1.2\nwhile time.monotonic() < end: pass"


def _make(controller: str, files: dict[str, dict[str, str]]) -> Path:
    group = Groups().find(controller)
    if group is None:
        pytest.skip(f"no {controller} control groups here")
    folder = group.folder / f"mlflow-perf-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        for name, text in files[f"v{group.version}"].items():
            (folder / name).write_text(text)
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no {controller} control group can be made here: {error}")
    return folder


@pytest.fixture
def cpu_group() -> Iterator[Path]:
    """Return a real group with a fifth of a CPU: little enough to be filled on a busy machine."""
    folder = _make("cpu", {
        "v1": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "20000"},
        "v2": {"cpu.max": "20000 100000"},
    })  # fmt: skip
    yield folder
    folder.rmdir()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """Return a real group with 256 MB of memory."""
    limit = str(256 << 20)
    folder = _make("memory", {"v1": {"memory.limit_in_bytes": limit}, "v2": {"memory.max": limit}})
    yield folder
    folder.rmdir()


def run_in(groups: list[Path], load: str) -> dict[str, float]:
    """Return the metrics of a load that ran in these groups."""
    result = subprocess.run(
        [sys.executable, "-c", JOB.format(load=load), json.dumps([str(g) for g in groups])],
        check=True, capture_output=True, text=True, env=os.environ,
    )  # fmt: skip
    metrics: dict[str, float] = json.loads(result.stdout)
    return metrics


def test_a_cpu_quota_is_what_the_job_owns(cpu_group: Path) -> None:
    """A loop under a fifth of a CPU: that is its limit, it fills it, and is held back by it."""
    metrics = run_in([cpu_group], BURN)
    assert metrics["cpu_limit_cores"] == 0.2
    assert metrics["job_cpu_avg_cores"] < 0.3
    used_pct = 100 * metrics["job_cpu_avg_cores"] / 0.2
    assert metrics["cpu_avg_utilization_pct"] == pytest.approx(min(100, used_pct), abs=6)
    # On a busy machine it gets little more than its quota anyway, and is seldom held back.
    assert metrics["cpu_throttled_pct"] > 0.5
    held = metrics["duration_sec"] * 0.2 / 3600
    assert metrics["node_cpu_hours"] == pytest.approx(held, rel=0.01)
    assert 0 <= metrics["node_unused_cpu_hours"] <= held
    assert "host_cpu_avg_utilization_pct" in metrics


def test_a_quota_rewritten_while_the_job_runs_holds_from_then_on(cpu_group: Path) -> None:
    """From a fifth of a CPU to two fifths halfway: the hours held lie between the two."""
    wider = {"cpu.cfs_quota_us": "40000", "cpu.max": "40000 100000"}
    load = (
        "import mlflow_perf.readers.cgroup.rebuilt as rebuilt\nrebuilt._LOOK_EVERY_SEC = 0.05\n"
        "time.sleep(0.5)\n"
        f"for name, text in {list(wider.items())}:\n"
        f"    path = {str(cpu_group)!r} + '/' + name\n"
        "    import os\n    if os.path.exists(path): open(path, 'w').write(text)\n"
        "time.sleep(0.5)"
    )
    metrics = run_in([cpu_group], load)
    assert metrics["cpu_limit_cores"] == 0.4
    mean_cores = 3600 * metrics["node_cpu_hours"] / metrics["duration_sec"]
    assert 0.22 < mean_cores < 0.38


def test_the_tightest_ancestor_wins(cpu_group: Path) -> None:
    """A group below with a wider quota is still held to the one above."""
    inner = cpu_group / "inner"
    inner.mkdir()
    try:
        metrics = run_in([inner], "time.sleep(0.2)")
    finally:
        inner.rmdir()
    assert metrics["cpu_limit_cores"] == 0.2
    assert metrics["cpu_avg_utilization_pct"] < 90


def test_a_memory_limit_is_what_the_job_owns(memory_group: Path) -> None:
    """128 MB held under a limit of 256 are at least half of it; the peak is the job's own."""
    load = "block = bytearray(b'x') * (128 << 20)\ntime.sleep(0.3)"
    metrics = run_in([memory_group], load)
    assert metrics["mem_limit_mb"] == 256.0
    assert 50 <= metrics["max_t_cgroup_mem_percent"] <= 100
    assert 128 < metrics["job_max_mem_mb"] < 256
    assert metrics["oom_kills"] == 0


def test_an_oom_kill_is_counted(memory_group: Path) -> None:
    """A child that the kernel kills at the limit is one OOM kill of the job."""
    hog = "x = [bytearray(b'x' * (32 << 20)) for _ in range(32)]"
    # The child is the one to go, not the job that measures.
    load = (
        (
            f"import subprocess\nchild = subprocess.Popen([sys.executable, '-c', {hog!r}])\n"
            "open(f'/proc/{child.pid}/oom_score_adj', 'w').write('1000')\nchild.wait()"
        )
        .replace("{", "{{")
        .replace("}", "}}")
    )
    metrics = run_in([memory_group], load.replace("{{", "{").replace("}}", "}"))
    assert metrics["oom_kills"] >= 1


def test_groups_of_the_first_and_second_version_side_by_side(cpu_group: Path) -> None:
    """`Groups` finds the group that a process entered."""
    child = subprocess.Popen(["sleep", "30"])
    try:
        (cpu_group / "cgroup.procs").write_text(str(child.pid))
        found = Groups(child.pid).find("cpu")
        assert isinstance(found, Group)
        assert found.folder == cpu_group
        assert not found.is_root
    finally:
        child.kill()
        child.wait()
