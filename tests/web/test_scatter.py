"""One field against another, as data."""

from __future__ import annotations

from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.fields import Field, read_field
from mlflow_perf.web.scatter import build_scatter


def _field(name: str) -> Field:
    field = read_field(name)
    assert field is not None
    return field


def _run(number: int, **params: str) -> PerfRun:
    return PerfRun("r", run_id=str(number), name=f"r{number}", params=params,
                   metrics={"auc": number / 10})  # fmt: skip


def test_a_sentence_says_whether_one_follows_the_other() -> None:
    """Six runs in order have a rank correlation of 1; runs without a value are counted."""
    runs = [*(_run(i, leaves=str(2**i)) for i in range(6)), _run(9)]
    view = build_scatter(runs, _field("params.leaves"), _field("auc"))
    assert view.plot is not None
    assert len(view.plot.dots) == 6
    assert view.summary.startswith("Both are known of 6 of 7 runs. auc rises as leaves rises")


def test_texts_have_equal_distances_and_few_kinds_a_shape() -> None:
    """Words are placed side by side; more than six kinds share the last shape."""
    runs = [_run(i, word="ab"[i % 2], kind=str(i)) for i in range(8)]
    view = build_scatter(runs, _field("params.word"), _field("auc"), _field("params.kind"))
    assert view.plot is not None
    assert [tick.text for tick in view.plot.x] == ["a", "b"]
    assert {dot.left for dot in view.plot.dots} == {25.0, 75.0}
    assert (len(view.kinds), view.kinds[-1]) == (6, "…")


def test_nothing_in_common_is_said() -> None:
    """Without a run that has both there is a sentence and no plot."""
    view = build_scatter([_run(1)], _field("params.leaves"), _field("auc"))
    assert (view.plot, view.summary) == (None, "No run has both leaves and auc.")
