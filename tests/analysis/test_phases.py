"""The phases of a run: where they begin and end, what held them back, how they are said."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mlflow_perf.analysis.phases import Phase, describe_phase, find_phases, read_phases
from mlflow_perf.model.document import NodeDocument, PerfDocument


def make_job(
    parts: Sequence[tuple[float, float, float, float]], *, interval: float = 1.0, seed: int = 0
) -> NodeDocument:
    """Return the document of a job of known parts: (seconds, CPUs, MB of memory, MB/s read)."""
    dice = random.Random(seed)
    whole = sum(part[0] for part in parts)
    columns: dict[str, list[float | None]] = {
        "elapsed_sec": [0.0], "job_cpu_sec": [0.0], "job_mem_mb": [100.0], "job_io_read_mb": [0.0],
    }  # fmt: skip
    now = used = read = 0.0
    while now < whole - 1e-9:
        end = min(whole, now + interval)
        memory, begin = 0.0, 0.0
        for seconds, cpus, mem_mb, mb_s in parts:
            inside = max(0.0, min(end, begin + seconds) - max(now, begin))
            used += cpus * inside * max(0.0, dice.gauss(1, 0.05))
            read += mb_s * inside
            memory = mem_mb if inside > 0 else memory
            begin += seconds
        for name, value in zip(columns, (end, used, memory, read), strict=True):
            columns[name].append(value)
        now = end
    summary = {"duration_sec": whole, "job_cpu_avg_cores": used / whole, "cpu_limit_cores": 2.0}
    return NodeDocument(
        started=1e9,
        duration_sec=whole,
        summary={**summary, "job_io_read_mb": read},
        reports=columns,
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_phases_of_a_made_job_are_found_within_a_second(seed: int) -> None:
    """Loading, one CPU, both CPUs, asleep: four phases with their kinds and figures."""
    parts = [(10.4, 0.1, 100, 80), (20.3, 1.0, 300, 0), (8.8, 1.9, 310, 0), (5.5, 0.02, 310, 0)]
    found = find_phases(make_job(parts, seed=seed))
    assert [phase.start_s for phase in found] == pytest.approx([0, 10.4, 30.7, 39.5], abs=1.0)
    assert found[-1].end_s == pytest.approx(45.0)
    assert [phase.kind for phase in found] == ["waiting", "serial", "saturated", "waiting"]
    assert [phase.cpu_cores for phase in found] == pytest.approx([0.1, 1, 1.9, 0.02], abs=0.25)
    assert found[1].mem_mb == pytest.approx(300, rel=0.05)


def test_an_even_job_is_one_phase_and_a_short_one_has_none() -> None:
    """One level is one phase; below a second there is nothing to cut."""
    assert len(find_phases(make_job([(60, 1, 100, 0)]))) == 1
    assert find_phases(make_job([(0.4, 1, 100, 0)], interval=0.1)) == []
    assert find_phases(NodeDocument()) == []


def test_operations_of_depth_one_cut_and_name_phases() -> None:
    """An operation that ran once is a phase by its exact times; one around everything is not."""
    document = make_job([(20, 1, 100, 0), (10, 0, 100, 0)])
    document.operations = {
        "times": {
            "all": {"count": 1, "last_ms": 30_000, "last_timestamp": 1e9 + 30},
            "load": {"count": 1, "last_ms": 7_250, "last_timestamp": 1e9 + 8.25},
            "load.one": {"count": 1, "last_ms": 3_000, "last_timestamp": 1e9 + 5},
            "row": {"count": 500, "last_ms": 2_000, "last_timestamp": 1e9 + 12},
        }
    }
    found = find_phases(document)
    assert [(p.name, p.start_s) for p in found] == [
        ("one CPU busy", 0.0), ("load", 1.0), ("one CPU busy", 8.25),
        ("waiting", pytest.approx(20, abs=1)),
    ]  # fmt: skip


def test_stored_phases_are_read_and_damaged_ones_left_out() -> None:
    """The phases in the document are used; a row that is not a phase is skipped."""
    phase = Phase("load", 0.0, 4.0, "waiting", 0.1, 120.0, "read_rows")
    document = NodeDocument(extra={"phases": [phase.as_dict(), {"start_s": "x"}, 7]})
    assert read_phases(document) == [phase]
    assert describe_phase(phase) == "0 s to 4 s: load: waiting, 0.1 CPUs, 120 MB, in read_rows."
    shared = replace(phase, caller="fetch")
    assert describe_phase(shared).endswith(", in read_rows (called by fetch).")
    assert describe_phase(replace(shared, name="read_rows")).endswith(", called by fetch.")
    document = NodeDocument(extra={"phases": [shared.as_dict()]})
    assert read_phases(document) == [shared]
    assert len(read_phases(make_job([(9, 0, 1, 0), (9, 1, 1, 0)]))) == 2


def test_phases_of_a_document_without_them_are_found_without_numpy(tmp_path: Path) -> None:
    """`mlflow-perf show` of an older document does not pay for the import of NumPy."""
    path = PerfDocument({0: make_job([(9, 0, 1, 0), (9, 1, 1, 0)])}).save(tmp_path / "old.json")
    script = (
        "import sys; from mlflow_perf.analysis.phases import read_phases;"
        "from mlflow_perf.model.document import PerfDocument;"
        f"print(len(read_phases(PerfDocument.from_json(open({str(path)!r}).read()).nodes[0])));"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", "False"]


def test_a_neighbour_on_the_gpu_is_a_phase() -> None:
    """Where another job's work on the GPU begins, so does a phase, and it says so."""
    count = 41
    reports: dict[str, list[float | None]] = {
        "elapsed_sec": [float(i) for i in range(count)],
        "job_cpu_sec": [0.3 * i for i in range(count)],
        "gpu_utilization_pct": [20.0 for _ in range(count)],
        "gpu_others_utilization_pct": [80.0 if i > 20 else 0.0 for i in range(count)],
    }
    summary = {"duration_sec": 40.0, "job_cpu_avg_cores": 0.3, "cpu_limit_cores": 2.0}
    gpus = {"gpu_avg_utilization_pct": 20.0, "gpu_others_avg_utilization_pct": 40.0}
    document = NodeDocument(
        started=1e9, duration_sec=40.0, summary={**summary, **gpus}, reports=reports
    )
    found = find_phases(document)
    assert [phase.start_s for phase in found] == pytest.approx([0.0, 20.0], abs=1.0)
    assert found[1].kind == "contended_gpu"
    assert "waiting for a GPU" in describe_phase(found[1])
