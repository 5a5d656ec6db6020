"""The scaling of a component from its runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlflow_perf.analysis.scaling_runs import group_points, study_scaling
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]


def _runs(make_run: MakeRun, *counts: int) -> list[PerfRun]:
    return [
        make_run(*[{"duration_sec": 20.0 + 400.0 / n + 1.0 * n}] * n, label=f"on {n}")
        for n in counts
    ]


def test_the_best_counts_are_those_of_the_law(make_run: MakeRun) -> None:
    """20 + 400/n + n: twenty nodes are the fastest, one is the cheapest."""
    points = group_points(_runs(make_run, 1, 4, 16))["train"]
    study = study_scaling("train", points, nodes=[1, 2, 4, 8, 16, 20, 32, 64])
    assert study.fastest in (16, 20, 32)
    assert study.cheapest == 1
    data = study.as_dict()
    for row in data["predictions"]:
        true = 20.0 + 400.0 / row["nodes"] + row["nodes"]
        assert row["low_seconds"] < row["seconds"] < row["high_seconds"]
        assert row["low_seconds"] < true < row["high_seconds"]
    assert [p["nodes"] for p in data["points"]] == [1, 4, 16]


def test_runs_that_failed_do_not_count(make_run: MakeRun) -> None:
    """A run that ended early would look fast."""
    failed = make_run({"duration_sec": 1.0}, status="FAILED")
    assert group_points([failed]) == {}
    with pytest.raises(RunNotFoundError, match="ended well"):
        study_scaling("train", [])


def test_one_count_says_nothing(make_run: MakeRun) -> None:
    """The message says what is missing."""
    points = group_points(_runs(make_run, 2, 2))["train"]
    with pytest.raises(SettingError, match=r"All runs of train had 2 nodes: scaling needs"):
        study_scaling("train", points)
    points = group_points(_runs(make_run, 1, 2))["train"]
    with pytest.raises(SettingError, match="above zero, not 0"):
        study_scaling("train", points, nodes=[0, 4])
