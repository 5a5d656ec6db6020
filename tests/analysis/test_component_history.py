"""A component's past: one metric, alike runs, its changes and its baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.analysis.conftest import MakeRun

from mlflow_perf.analysis import component_history
from mlflow_perf.analysis.component_history import read_history
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import PerfRun

Serve = Callable[[Sequence[PerfRun]], None]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Return what makes runs, newest first, the answer of each search."""

    def answer(runs: Sequence[PerfRun]) -> None:
        def find(component: str | None = None, **_: object) -> list[PerfRun]:
            return [run for run in runs if component in (None, run.component)]

        monkeypatch.setattr(component_history, "find_runs", find)

    return answer


def _make_past(make_run: MakeRun, *values: float) -> list[PerfRun]:
    """Return runs of these durations, newest first; `values` are oldest first."""
    return [
        make_run(
            {"duration_sec": value},
            label=f"r{i}",
            started=float(i),
            params={"rows": "9" if i == 2 else "5"},
            tags={"mlflow_perf.baseline": "true"} if i == 1 else {},
        )
        for i, value in enumerate(values)
    ][::-1]


def test_a_change_is_named_with_the_run_where_it_began(make_run: MakeRun, serve: Serve) -> None:
    """Oldest first; before and after are medians; the level is compared with the baseline."""
    serve(_make_past(make_run, 10, 10.1, 10, 9.9, 10, 10.2, 15, 15.1, 15, 14.9, 15.2, 15))
    data = read_history("train").as_dict()
    assert [point["run_id"] for point in data["points"]] == [f"r{i}" for i in range(12)]
    assert data["changes"] == [
        {"run_id": "r6", "before": 10.0, "after": 15.0, "change_pct": pytest.approx(50.0)}
    ]
    assert data["baseline"]["run_id"] == "r1"
    assert data["baseline"]["change_pct"] == pytest.approx(48.5, abs=0.1)


def test_only_runs_like_the_newest_are_used(make_run: MakeRun, serve: Serve) -> None:
    """Same hardware, by choice same parameters, and only finished runs."""
    past = _make_past(make_run, 10, 10, 10, 10)
    other = make_run({"duration_sec": 1.0, "cpu_limit_cores": 64.0}, label="big")
    limited = make_run({"duration_sec": 10.0, "cpu_limit_cores": 2.0}, label="new", params={})
    failed = make_run({"duration_sec": 2.0}, label="failed", status="FAILED")
    serve([limited, other, failed, *past])
    found = read_history("train")
    assert [p.run_id for p in found.points] == ["r0", "r1", "r2", "r3", "new"]
    assert found.left_out == 2
    assert len(read_history("train", any_hardware=True).points) == 6
    serve(past)
    assert [p.run_id for p in read_history("train", same_params=["rows"]).points] == [
        "r0",
        "r1",
        "r3",
    ]
    assert len(read_history("train", same_params=None).points) == 3


def test_a_wrong_name_is_answered_with_the_nearest(make_run: MakeRun, serve: Serve) -> None:
    """A metric that nobody logged, a component that never ran, a parameter that is not there."""
    serve(_make_past(make_run, 10, 11))
    with pytest.raises(SettingError, match="did you mean 'duration_sec'"):
        read_history("train", "duraton_sec")
    with pytest.raises(RunNotFoundError, match="did you mean 'train'"):
        read_history("trian")
    with pytest.raises(SettingError, match="no parameter 'columns'"):
        read_history("train", same_params=["columns"])


def test_a_metric_that_no_run_like_the_newest_has_is_said(make_run: MakeRun, serve: Serve) -> None:
    """As where the learning rate of the newest run made its loss infinite."""
    bad = make_run({"duration_sec": 1.0}, label="bad", started=2.0, params={"lr": "9"})
    good = make_run({"loss": 1.0}, label="good", started=1.0, params={"lr": "1"})
    serve([bad, good])
    with pytest.raises(SettingError, match="No run like the newest, bad, has a number as 'loss'"):
        read_history("train", "loss", same_params=["lr"], any_hardware=True)
