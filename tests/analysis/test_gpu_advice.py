"""What each GPU of the next run needs."""

from __future__ import annotations

import pytest
from tests.analysis.conftest import MakeRun

from mlflow_perf.analysis.gpu_advice import advise_gpus
from mlflow_perf.analysis.machines import Machine, choose_machine
from mlflow_perf.analysis.peak_usage import PeakUsage, read_peak_usage
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.tracking.perf_run import IMPORTED_TAG

USED = {
    "gpu0_avg_utilization_pct": 71.0,
    "gpu0_max_t_mem_percent": 40.0,
    "gpu1_avg_utilization_pct": 0.0,
    "gpu1_max_t_mem_percent": 0.0,
}


def read(make_run: MakeRun, *summaries: dict[str, float]) -> list[PeakUsage]:
    """Return the peak usage of runs of one node each."""
    runs = [make_run(summary, label=f"r{i}") for i, summary in enumerate(summaries)]
    return [peak for run in runs for peak in read_peak_usage(run)]


def test_the_fullest_gpu_of_all_runs_counts_with_a_head_room(make_run: MakeRun) -> None:
    """Of 20,000 MB at the peak, 22,000 are asked for, and the evidence has one line on it."""
    advice = advise_gpus(
        read(
            make_run,
            {**USED, "max_t_gpu_mem_mb": 8000.0},
            {**USED, "max_t_gpu_mem_mb": 20000.0},
            USED,  # of an earlier version
        )
    )
    assert advice.memory_mb == 22000
    assert advice.evidence == (
        "GPU: 1 of 2 per node computed or held memory, 0% busy on average (r0).",
        "GPU: the job held at most 20,000 MB of one GPU (r1); 10% head-room added.",
    )


def test_what_no_run_says_is_unknown(make_run: MakeRun) -> None:
    """Documents of earlier versions do not have the figure: no advice, and the evidence says so."""
    advice = advise_gpus(read(make_run, USED))
    assert advice.memory_mb is None
    assert "no advice on it" in advice.evidence[1]


@pytest.mark.parametrize(
    ("summary", "sentences"),
    [({"gpu0_avg_utilization_pct": 0.0, "max_t_gpu_mem_mb": 4.0}, 1), ({}, 0)],
)
def test_without_work_on_a_gpu_none_of_its_memory_is_asked_for(
    make_run: MakeRun, summary: dict[str, float], sentences: int
) -> None:
    """The 4 MB that are in use on an idle GPU are no need of the job's."""
    advice = advise_gpus(read(make_run, summary))
    assert advice.memory_mb is None
    assert len(advice.evidence) == sentences


def test_a_gpu_whose_memory_the_job_held_is_asked_for(make_run: MakeRun) -> None:
    """It ran one kernel on each of two of three GPUs: 0% busy, and it cannot run without them."""
    held = {"gpu0_max_t_mem_percent": 18.0, "gpu1_max_t_mem_percent": 0.4}
    idle = {"gpu2_avg_utilization_pct": 0.0, "gpu2_max_t_mem_percent": 0.003}
    peaks = read(make_run, {**held, **idle, "max_t_gpu_mem_mb": 25_000.0})
    assert (peaks[0].gpus, peaks[0].owned_gpus) == (2, 3)
    assert advise_gpus(peaks).memory_mb == 27_500


IMPORTED = {IMPORTED_TAG: "sacct"}


@pytest.mark.parametrize(
    ("hours", "gpus", "sentence"),
    [
        ({"node_gpu_hours": 8.0}, 4, "the 4 per node of r are asked for again"),
        ({"node_gpu_hours": 0.0}, 0, ""),
        ({}, None, "no advice on them"),
    ],
)
def test_gpus_of_an_import_are_asked_for_again(
    make_run: MakeRun, hours: dict[str, float], gpus: int | None, sentence: str
) -> None:
    """Accounting says how many the job had, not what they did; other histories say nothing."""
    figures = {"duration_sec": 7200.0, "job_cpu_avg_cores": 3.0, **hours}
    size = right_size([make_run(figures, label="r", tags=IMPORTED)])
    assert size.gpus == gpus
    assert size.peak["gpus"] == 0
    said = " ".join(line for line in size.evidence if line.startswith("GPU"))
    assert sentence in said
    assert bool(said) == bool(sentence)


def test_a_machine_for_a_job_whose_gpus_are_unknown_says_so(make_run: MakeRun) -> None:
    """The cheapest machine has none."""
    figures = {"duration_sec": 60.0, "job_cpu_avg_cores": 3.0}
    size = right_size([make_run(figures, label="r", tags=IMPORTED)])
    choice = choose_machine(size, [Machine("small", 8, 1e6, price=1.0)])
    assert "unknown whether the job needs a GPU" in choice.reason
