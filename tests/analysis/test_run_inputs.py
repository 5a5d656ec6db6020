"""What a run was given, as numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlflow_perf.analysis.run_inputs import check_inputs, parse_inputs, read_inputs
from mlflow_perf.errors import SettingError
from mlflow_perf.tracking.perf_run import PerfRun


def test_numeric_parameters_counters_and_bytes_read_count(make_run: Callable[..., PerfRun]) -> None:
    """Timed operations, texts and infinite parameters are not inputs."""
    node = {
        "job_io_read_mb": 30.0,
        "ops/rows/count": 500.0,
        "ops/load/count": 3.0,
        "ops/load/total_ms": 9.0,
    }
    params = {"depth": "7", "name": "abc", "cut": "inf"}
    run = make_run(node, {**node, "ops/rows/count": 20.0}, params=params)
    assert read_inputs(run) == {"depth": 7.0, "rows": 520.0, "read_mb": 60.0}


def test_inputs_are_named_numbers() -> None:
    """Numbers may be written as Python and people write them."""
    assert parse_inputs(["rows=2e6", "depth=1_000"]) == {"rows": 2e6, "depth": 1000.0}


@pytest.mark.parametrize("text", ["rows", "rows=", "rows=many", "=3", "rows=nan", "rows=-1"])
def test_anything_else_is_refused(text: str) -> None:
    """The message shows what was given and what is expected."""
    with pytest.raises(SettingError, match="NAME=NUMBER"):
        parse_inputs([text])


def test_an_input_that_no_run_has_is_refused_with_those_they_have() -> None:
    """A mistyped name would otherwise be ignored without a word."""
    with pytest.raises(SettingError, match=r"'row'; they have depth, rows"):
        check_inputs({"row": 1.0}, [{"rows": 1.0}, {"depth": 2.0}])
