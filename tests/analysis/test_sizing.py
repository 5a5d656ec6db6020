"""The sizer: what it suggests, and what it does with bad numbers."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf.analysis.sizing import Sizer
from mlflow_perf.errors import SettingError

RUNS = st.lists(
    st.tuples(st.floats(0.1, 1e6), st.floats(0, 1e6), st.floats(0, 1e9)), min_size=1, max_size=25
)


def learn(*peaks: float, risk: float = 0.01) -> Sizer:
    """Return a sizer that has seen runs with these peaks and no inputs."""
    sizer = Sizer(risk)
    for peak in peaks:
        sizer.observe(peak_mb=peak, duration_sec=60.0)
    return sizer


def test_headroom_shrinks_as_history_grows() -> None:
    """Runs that agree need less and less head-room."""
    rooms = [learn(*[1000.0] * count).suggest().memory_mb for count in (1, 3, 10, 100)]
    assert rooms == sorted(rooms, reverse=True)
    assert 1300 < rooms[0] < 1800
    assert 1000 < rooms[-1] < 1030


def test_few_runs_say_so() -> None:
    """One run is said to be little evidence, and is less likely to be enough."""
    one, many = learn(1000.0).suggest(), learn(*[1000.0] * 50).suggest()
    assert "1 run is little evidence" in one.method
    assert "little evidence" not in many.method
    assert (one.runs, many.runs) == (1, 50)
    assert one.p_fit < many.p_fit < 1


def test_the_input_that_predicts_is_found_and_named() -> None:
    """Of three inputs the one that the peak follows is used."""
    chance = random.Random(1)
    sizer = Sizer()
    for _ in range(60):
        read = chance.uniform(100, 10_000)
        inputs = {"constant": 3.0, "noise": chance.random(), "read_mb": read}
        sizer.observe(peak_mb=50 + 2 * read, duration_sec=read / 10, inputs=inputs)
    found = sizer.suggest(inputs={"constant": 3.0, "noise": 0.5, "read_mb": 5000.0})
    assert found.predictor == "read_mb"
    assert "read_mb" in found.method
    assert 10_050 <= found.memory_mb <= 12_500
    assert found.duration_sec == pytest.approx(500, rel=0.2)
    assert sizer.suggest().predictor is None


def test_less_than_the_newest_run_used_is_explained() -> None:
    """A smaller input may need less than the newest run, and the method says why."""
    sizer = Sizer()
    for read in [*range(1, 40), 100]:
        sizer.observe(peak_mb=10.0 * read, duration_sec=1.0, inputs={"read_mb": float(read)})
    found = sizer.suggest(inputs={"read_mb": 5.0})
    assert found.memory_mb < 1000
    assert "read_mb predicts less than the newest run's 1000 MB" in found.method


@settings(max_examples=40, deadline=None)
@given(RUNS, st.floats(0, 1e9), st.floats(0.1, 1e6))
def test_suggestions_keep_their_promises(
    runs: list[tuple[float, float, float]], read: float, failed: float
) -> None:
    """Not below the newest run without a reason; after a failure above it and all that was seen."""
    sizer = Sizer()
    for peak, duration, value in runs:
        sizer.observe(peak_mb=peak, duration_sec=duration, inputs={"read_mb": value})
    found = sizer.suggest(inputs={"read_mb": read})
    assert math.isfinite(found.memory_mb)
    assert math.isfinite(found.duration_sec)
    assert 0 <= found.p_fit < 1
    assert found.memory_mb >= runs[-1][0] or "less than the newest run" in found.method
    again = sizer.suggest(inputs={"read_mb": read}, failed_mb=failed)
    assert again.memory_mb > failed
    assert again.memory_mb >= found.memory_mb
    if found.runs == len(runs):
        assert again.memory_mb > max(peak for peak, _, _ in runs)


@settings(max_examples=15, deadline=None)
@given(RUNS)
def test_the_same_runs_give_the_same_suggestion(runs: list[tuple[float, float, float]]) -> None:
    """Nothing is drawn by chance."""
    found = []
    for _ in range(2):
        sizer = Sizer()
        for peak, duration, value in runs:
            sizer.observe(peak_mb=peak, duration_sec=duration, inputs={"a": value, "b": -value})
        found.append(sizer.suggest(inputs={"a": 1.0, "b": -1.0}))
    assert found[0] == found[1]


def test_a_component_that_changed_forgets_its_past() -> None:
    """After a step down the old peaks do not count, and the method says so."""
    chance = random.Random(4)
    sizer = learn(*(chance.gauss(1000, 20) for _ in range(50)))
    for _ in range(10):
        sizer.observe(peak_mb=chance.gauss(400, 10), duration_sec=30.0)
    found = sizer.suggest()
    assert 400 < found.memory_mb < 600
    assert "the component changed" in found.method
    assert found.runs <= 10


def test_larger_inputs_are_no_change_of_the_component() -> None:
    """Runs that follow the same line keep their past, however large they are."""
    sizer = Sizer()
    for read in [*range(10, 50), *range(500, 520)]:
        sizer.observe(peak_mb=7.0 * read, duration_sec=1.0, inputs={"read_mb": float(read)})
    assert sizer.suggest(inputs={"read_mb": 30.0}).runs == 60


def test_runs_without_the_input_that_predicts_are_learned_from_too() -> None:
    """Old runs lack a parameter that later ones have: they count, without that input."""
    sizer = Sizer()
    for peak in (100.0, 104.0):
        sizer.observe(peak_mb=peak, duration_sec=1.0)
    for rows in range(1, 9):
        sizer.observe(peak_mb=100.0 + 10 * rows, duration_sec=1.0, inputs={"rows": rows})
    found = sizer.suggest(inputs={"rows": 9.0})
    assert (found.runs, found.predictor) == (10, "rows")
    assert found.memory_mb > 180


def test_a_higher_risk_asks_for_less() -> None:
    """Who accepts more failures gets less head-room."""
    chance = random.Random(8)
    peaks = [chance.lognormvariate(6, 0.5) for _ in range(80)]
    careful, bold = (learn(*peaks, risk=risk).suggest() for risk in (0.001, 0.3))
    assert bold.memory_mb < careful.memory_mb


def test_a_failure_without_history_doubles() -> None:
    """The first run of a component may have been killed; then twice as much is tried."""
    assert Sizer().suggest(failed_mb=500.0).memory_mb == 1000.0


def test_a_run_too_short_to_be_measured_is_left_out() -> None:
    """A peak of zero says nothing."""
    assert learn(1000.0, 0.0).suggest() == learn(1000.0).suggest()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"peak_mb": math.nan}, "peak_mb"),
        ({"peak_mb": -1.0}, "peak_mb"),
        ({"peak_mb": math.inf}, "peak_mb"),
        ({"peak_mb": 1e13}, "looks like bytes"),
        ({"peak_mb": "many"}, "must be a number"),
        ({"duration_sec": -1.0}, "duration_sec"),
        ({"inputs": {"rows": math.nan}}, "rows"),
    ],
)
def test_numbers_that_cannot_be_are_refused(change: dict[str, Any], word: str) -> None:
    """NaN, negative and impossible numbers are errors that name the argument."""
    with pytest.raises(SettingError, match=word):
        Sizer().observe(**{"peak_mb": 1.0, "duration_sec": 1.0, **change})


def test_settings_that_cannot_be_are_refused() -> None:
    """A risk outside of 0 and 1, no history and a failed size of zero are errors."""
    for risk in (0.0, 1.0, math.nan):
        with pytest.raises(SettingError, match="risk"):
            Sizer(risk)
    with pytest.raises(SettingError, match="observe a run first"):
        Sizer().suggest()
    with pytest.raises(SettingError, match="failed_mb"):
        learn(1.0).suggest(failed_mb=0.0)


def test_a_suggestion_after_a_thousand_runs_is_fast() -> None:
    """A suggestion takes a millisecond or so; five are allowed for a busy machine."""
    chance = random.Random(2)
    sizer = Sizer()
    for _ in range(1000):
        read = chance.uniform(1, 1000)
        sizer.observe(peak_mb=50 + read, duration_sec=read, inputs={"read_mb": read})
    taken = []
    for _ in range(20):
        start = time.perf_counter()
        sizer.suggest(inputs={"read_mb": 500.0})
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.005


def test_an_input_beyond_all_others_is_extrapolated_to() -> None:
    """Twice the largest input of a proven predictor asks for about twice its memory, not less."""
    sizer = Sizer()
    for i in range(1, 13):
        rows = 1000.0 * (5 * i % 13)
        sizer.observe(peak_mb=100.0 + rows / 10, duration_sec=60.0, inputs={"rows": rows})
    found = sizer.suggest(inputs={"rows": 24000.0})
    assert found.predictor == "rows"
    assert 2500.0 <= found.memory_mb < 3500.0


@settings(max_examples=20, deadline=None)
@given(
    base=st.floats(0, 10_000), slope=st.floats(0.01, 100), first=st.integers(0, 20),
    beyond=st.floats(1, 2),
)  # fmt: skip
def test_a_straight_line_over_a_constant_is_followed(
    base: float, slope: float, first: int, beyond: float
) -> None:
    """Python needs some memory whatever the input; the rest grows with it, far beyond too."""
    sizer = Sizer()
    for rows in range(first, first + 30):
        sizer.observe(peak_mb=base + slope * rows, duration_sec=60.0, inputs={"rows": float(rows)})
    asked = beyond * (first + 29)  # the data fit a power of the rows nearly as well
    assert sizer.suggest(inputs={"rows": asked}).memory_mb >= 0.9 * (base + slope * asked)


def test_few_runs_that_prove_an_input_need_no_long_history() -> None:
    """Twelve runs on a line are proof enough: a small input gets little."""
    sizer = Sizer()
    for i in range(1, 13):
        rows = 1000.0 * (5 * i % 13)
        sizer.observe(peak_mb=100.0 + rows / 10, duration_sec=60.0, inputs={"rows": rows})
    assert 300.0 <= sizer.suggest(inputs={"rows": 2000.0}).memory_mb < 600.0


def test_an_input_far_beyond_all_runs_is_called_a_guess() -> None:
    """The line goes on, but nothing was seen there; near the runs nothing is said of it."""
    sizer = Sizer()
    for rows in range(1, 31):
        sizer.observe(peak_mb=100.0 + 5 * rows, duration_sec=60.0, inputs={"rows": float(rows)})
    far = sizer.suggest(inputs={"rows": 300.0})
    assert far.memory_mb >= 1600
    assert "a guess: 300 is 10 times the largest rows so far (30)" in far.method
    assert far.is_guess
    near = sizer.suggest(inputs={"rows": 45.0})
    assert "a guess" not in near.method
    assert not near.is_guess


@pytest.mark.parametrize("rows", [5e5, 1e6, 1e30])
def test_a_size_that_is_cut_off_says_so(rows: float) -> None:
    """No suggestion goes beyond 50 times the largest peak; it has no chance, and names the cap."""
    sizer = Sizer()
    for i in range(60):
        value = 100.0 * (7 * i % 50)
        sizer.observe(peak_mb=100 + value / 50, duration_sec=60.0, inputs={"rows": value})
    found = sizer.suggest(inputs={"rows": rows})
    assert "cut to 50 times the largest peak so far" in found.method
    assert found.is_guess
    assert "cut to" not in sizer.suggest(inputs={"rows": 1e5}).method


def test_a_size_is_cut_off_near_the_runs_too() -> None:
    """A steep line reaches the cap although the input is less than twice the largest."""
    sizer = Sizer()
    for i in range(30):
        more = 7 * i % 30
        sizer.observe(peak_mb=100.0 + more, duration_sec=60.0, inputs={"rows": 1e4 + more})
    found = sizer.suggest(inputs={"rows": 1.9e4})
    assert "a guess" not in found.method
    assert "cut to 50 times" in found.method
    assert found.is_guess
