"""What to ask for, in the report."""

from __future__ import annotations

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports.asked_view import build_asked_view
from mlflow_perf.tracking.perf_run import PerfRun

FIGURES = {
    "duration_sec": 60.0,
    "cpu_limit_cores": 16.0,
    "job_cpu_avg_cores": 1.0,
    "job_max_cpu_cores": 1.1,
    "job_max_mem_mb": 900.0,
    "mem_limit_mb": 65536.0,
    "cpu_avg_utilization_pct": 7.0,
}


def test_had_used_and_advised_stand_beside_lines_to_paste() -> None:
    """One row per resource that is known, and the lines of each system."""
    view = build_asked_view({0: NodeDocument({"index": 0}, summary=FIGURES)}, None)
    assert view is not None
    rows = {name: (had, used, asked) for name, had, used, asked in view.rows}
    assert rows["CPUs per node"][0] == "16"
    assert rows["Memory per node"][:2] == ("64 GB", "900 MB")
    texts = {title: text for title, _, text in view.lines}
    assert "#SBATCH --mem=" in texts["Slurm"]
    assert {"Kubernetes", "Azure ML"} <= set(texts)
    assert view.evidence


def test_the_memory_of_a_gpu_has_a_row_where_the_job_used_one() -> None:
    """What it held at most of one GPU, and what each must have."""
    gpu = {"gpu0_avg_utilization_pct": 35.0, "max_t_gpu_mem_mb": 20480.0}
    view = build_asked_view({0: NodeDocument({"index": 0}, summary={**FIGURES, **gpu})}, None)
    assert view is not None
    assert view.rows[-1] == ("Memory per GPU", "–", "20 GB", "22 GB")


def test_a_failed_run_is_no_sample_of_the_next_one() -> None:
    """As `advise` says of it: its peak is a lower bound, and no chance is told."""
    node = NodeDocument({"index": 0}, summary=FIGURES, status="FAILED")
    for run in (None, PerfRun("failed", status="FAILED")):
        view = build_asked_view({0: node}, run)
        assert view is not None
        evidence = " ".join(view.evidence)
        assert "Not finished, so not the figures of the whole work: this run (FAILED)." in evidence
        assert "chance" not in evidence


def test_without_figures_nothing_is_advised() -> None:
    """A page of a run without nodes has no such section."""
    assert build_asked_view({}, None) is None
