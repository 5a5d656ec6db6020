"""A public name that is first used while the interpreter ends."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import mlflow_perf


def test_a_name_that_comes_too_late_does_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its block, its loop and its function run as without us, and one line says so."""
    for name in ("report", "steps", "time"):
        monkeypatch.delitem(vars(mlflow_perf), name, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "is_finalizing", lambda: True)
        late: Any = mlflow_perf.report
        with late("train", interval=1) as perf:
            perf.add_counter("rows", 3)
            with perf.time("work"):
                pass
        assert [*mlflow_perf.steps([1, 2])] == [1, 2]
        assert late(len) is len
        assert late("train")(len)("abc") == 3
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "mlflow_perf.report has no effect: the interpreter is ending."
    assert mlflow_perf.report is not late
