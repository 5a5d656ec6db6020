"""Memory that still grows when the job ends."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis.memory_trend import read_memory_trend
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.profile import Profile
from mlflow_perf.model.samples import Function


def _node(*memory_mb: float) -> NodeDocument:
    times = [float(i) for i in range(len(memory_mb))]
    return NodeDocument(
        summary={"mem_limit_mb": 16_000.0},
        reports={"elapsed_sec": [*times], "job_mem_mb": [*memory_mb]},
    )


def test_steady_growth_is_told_with_its_rate() -> None:
    """To 6 GB in ten seconds of 16: more than half is at stake."""
    trend = read_memory_trend(_node(*(100 + 590 * i for i in range(11))))
    assert trend.at_stake > 0.8
    assert trend.mb_per_min == pytest.approx(590 * 60)
    assert (trend.first_mb, trend.last_mb) == (100, 6000)


@pytest.mark.parametrize(
    "memory",
    [
        [100, 2000, 4000, 6000, *[6000] * 12],  # loaded, then kept
        [60, 60, *range(100, 440, 34), *[420] * 4],  # its last fifth is flat
        [100, 100, 140, 220, 260, 340, 424, 420],
        [*range(100, 6000, 59), *[6000 + i % 3 for i in range(12)]],  # flat, with noise
        [500.0] * 16,
        [100 + i for i in range(16)],  # a little
        [6000 - 300 * i for i in range(16)],
        [100, 6000],  # too few samples
        [0.0, float("nan"), 2000, 4000, float("inf"), 6000, 1e300],  # a damaged document
        [],
    ],
)
def test_other_shapes_are_no_growth(memory: list[float]) -> None:
    """Loading data, a level, a few MB, falling memory and two samples are nothing at stake."""
    assert read_memory_trend(_node(*memory)).at_stake < 0.05


def test_the_rate_is_that_of_the_metric() -> None:
    """The sentence and the table of `show` have one figure; a short block has no metric."""
    node = _node(60, 60, *range(160, 1100, 100))
    assert read_memory_trend(node).mb_per_min == pytest.approx(60 * 100)
    node.summary["job_mem_growth_mb_per_min"] = 5900.0
    assert read_memory_trend(node).mb_per_min == 5900.0


def test_memory_that_is_released_at_the_end_has_the_rate_of_its_growth() -> None:
    """The line through all samples, the metric, would be flatter than what is told of."""
    node = _node(*range(100, 900, 80), 110)
    node.summary["job_mem_growth_mb_per_min"] = 1700.0
    trend = read_memory_trend(node)
    assert (trend.is_released, trend.last_mb) == (True, 820)
    assert trend.mb_per_min == pytest.approx(60 * 80)


@pytest.mark.parametrize("end", [[], [100.0]], ids=["kept", "released"])
def test_growth_in_a_step_for_each_epoch_goes_on_after_the_last_one(end: list[float]) -> None:
    """Memory that is flat within each epoch is flat within the last one, too."""
    steps = [100.0 + 500 * (i // 12) for i in range(60)]
    assert read_memory_trend(_node(*steps, *end)).at_stake > 0.5


@pytest.mark.parametrize(("last_mb", "is_told"), [(665, False), (3000, True)])
def test_what_new_workers_load_is_no_growth_of_the_job(last_mb: float, is_told: bool) -> None:
    """Four workers of joblib's import scikit-learn as long as a short search takes."""
    memory = [343 + (last_mb - 343) * i / 10 for i in range(11)]
    node = _node(*memory)
    node.reports["job_processes"] = [1.0, *[5.0] * 9, None]
    assert (read_memory_trend(node).at_stake > 0.3) == is_told
    assert (read_memory_trend(node).at_stake > 0.0) == is_told


@pytest.mark.parametrize(("loading_sec", "is_told"), [(9.0, False), (0.5, True)])
def test_a_job_that_imports_all_the_time_keeps_nothing(loading_sec: float, is_told: bool) -> None:
    """Its memory grew until its end, with the modules of libraries; its program may be one, too."""
    functions = [
        Function("main thread", "", 0, is_library=False),
        Function("<module>", "pytest/__main__.py", 1, is_library=True),
        Function("<module>", "xgboost/__init__.py", 1, is_library=True),
        Function("work", "job.py", 1, is_library=False),
    ]
    bucket = {2: (loading_sec, loading_sec), 3: (1.0, 1.0)}
    tree = Profile(functions, parents=[-1, 0, 1, 1], names=[0, 1, 2, 3], buckets=[bucket])
    node = _node(*(100 + 590 * i for i in range(11)))
    node.extra["profile"] = {"flame": tree.as_dict()}
    assert (read_memory_trend(node).at_stake > 0.8) == is_told
    assert (read_memory_trend(node).at_stake > 0.0) == is_told
