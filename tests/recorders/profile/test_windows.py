"""The samples of one recording: bounded, and the same from the spool file of a dead process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.model.samples import Function, RawStacks, Sample
from mlflow_perf.recorders.collect import collect_stacks
from mlflow_perf.recorders.profile.windows import StackWindow


def _sample(number: int) -> Sample:
    return Sample("main thread", number, (Function(f"f{number}", "job.py", 1, False),))


def _sums(raw: RawStacks) -> dict[str, float]:
    sums: dict[str, float] = {}
    for _, _, stack, wall, _, _ in raw.cells:
        name = raw.functions[raw.stacks[stack][2][0]].name
        sums[name] = sums.get(name, 0.0) + wall
    return sums


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.floats(1e9, 1e9 + 1e7), st.floats(1e-6, 10)), max_size=200
    )
)
def test_no_second_is_lost_however_long_the_job(added: list[tuple[int, float, float]]) -> None:
    """Buckets widen as the job goes on; each stack keeps its seconds."""
    window = StackWindow()
    true: dict[str, float] = {}
    for number, at, wall in added:
        window.add(_sample(number), at, wall, 0.0)
        true[f"f{number}"] = true.get(f"f{number}", 0.0) + wall
    raw = window.as_raw()
    assert _sums(raw) == pytest.approx(true)
    assert len({cell[0] for cell in raw.cells}) <= 128


def test_more_stacks_than_are_kept_are_counted_together() -> None:
    """Memory is bounded: from some number on, the rest is one stack."""
    window = StackWindow()
    for number in range(6000):
        window.add(_sample(number), 1e9 + number, 1.0, 0.5)
    raw = window.as_raw()
    assert len(raw.stacks) <= 4001
    assert _sums(raw)["(other stacks)"] == pytest.approx(2000, abs=1)
    assert sum(cell[5] for cell in raw.cells) == 6000


@pytest.mark.parametrize("count", [1, 300, 5000])
def test_the_spool_file_holds_what_the_window_holds(tmp_path: Path, count: int) -> None:
    """Written sample by sample, so that a process that is killed leaves all but the last."""
    window = StackWindow(50.0)
    window.spool_to(tmp_path)
    for i in range(count):
        window.add(_sample(i % 70), 1e9 + i / 10, 0.01, 0.005, 1 + i % 3)
    (raw,) = collect_stacks(tmp_path)
    assert raw.rate_hz == 50.0
    assert _sums(raw) == pytest.approx(_sums(window.as_raw()))
    assert sum(cell[5] for cell in raw.cells) == sum(cell[5] for cell in window.as_raw().cells)
    assert collect_stacks(tmp_path, but=window.source) == []


def test_a_foreign_file_in_the_folder_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged or hostile file costs one warning."""
    from mlflow_perf.recorders.spool import SpoolWriter

    SpoolWriter(tmp_path, "stacks", lambda: {"functions": [], "stacks": [["x", 1, [7]]]})
    SpoolWriter(
        tmp_path,
        "stacks",
        lambda: {"functions": [], "stacks": [["x", 1, [7]]], "cells": [], "rate_hz": None},
    )
    assert collect_stacks(tmp_path) == []
    assert caplog.text.count("cannot be read") == 2
