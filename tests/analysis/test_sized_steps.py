"""The advice for each step of a workflow, or for each component."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.analysis.sized_steps import size_each
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.notices import tell
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]
NODE = {"duration_sec": 60.0, "job_max_mem_mb": 3000.0}


def test_a_group_without_figures_is_told_and_left_out(make_run: MakeRun) -> None:
    """The others have their advice; where there is but one, that is the error."""
    empty = [PerfRun("none", run_id="n", status="FAILED")]
    said: list[str] = []
    token = tell.set(said.append)
    try:
        sizes = size_each({"fit": [make_run(NODE)], "prepare": empty}, right_size)
        with pytest.raises(RunNotFoundError, match="No run holds figures"):
            size_each({"prepare": empty, "tidy": empty}, right_size)
    finally:
        tell.reset(token)
    assert sizes == {"fit": right_size([make_run(NODE)])}
    assert [text.split(":")[0] for text in said] == [
        "prepare is left out", "prepare is left out", "tidy is left out",
    ]  # fmt: skip
    with pytest.raises(RunNotFoundError, match="nothing to advise"):
        size_each({"prepare": empty}, right_size)


def test_runs_that_were_killed_are_counted_with_their_component(make_run: MakeRun) -> None:
    """They may have needed more memory than the others, and the advice cannot know it."""
    silent = [PerfRun(name, run_id=name, component="fit") for name in "ab"]
    sizes = size_each({"fit": [make_run(NODE)], "tidy": [make_run(NODE)]}, right_size, silent)
    assert sizes["fit"].evidence == (
        *sizes["tidy"].evidence,
        "2 runs of fit were left out: they were killed before they had figures.",
    )
