"""Memory that still grows when the job ends."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis.memory_trend import read_memory_trend
from mlflow_perf.model.document import NodeDocument


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
        [500.0] * 16,
        [100 + i for i in range(16)],  # a little
        [6000 - 300 * i for i in range(16)],
        [100, 6000],  # too few samples
        [],
    ],
)
def test_other_shapes_are_no_growth(memory: list[float]) -> None:
    """Loading data, a level, a few MB, falling memory and two samples are nothing at stake."""
    assert read_memory_trend(_node(*memory)).at_stake < 0.05
