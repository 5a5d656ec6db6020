"""The law of how exact shares of samples are."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.model.exactness import count_equal_samples, find_share_error, pool_samples
from mlflow_perf.model.profile import Profile, format_share
from mlflow_perf.model.profile_building import build_profile
from mlflow_perf.model.samples import Function, RawStacks


def _list_stacks(count: int) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return one stack of the main thread for each function."""
    return [("main thread", 1, (i,)) for i in range(count)]


SHARES = st.floats(0.0, 1.0)
COUNTS = st.floats(0.5, 1e6)


@given(SHARES, COUNTS, st.floats(1.0, 100.0))
def test_more_samples_are_more_exact_and_none_are_certain(
    share: float, samples: float, times: float
) -> None:
    """The error is between 0 and 1, the same for a share and its rest, and falls with samples."""
    error = find_share_error(share, samples)
    assert 0.0 < error <= 1.0
    assert error == pytest.approx(find_share_error(1.0 - share, samples), abs=1e-9)
    assert find_share_error(share, samples * times) <= error + 1e-12
    assert find_share_error(share, 0.0) == 1.0


@pytest.mark.parametrize("samples", [10, 30, 100, 300])
def test_the_true_share_is_inside_in_about_95_of_100_cases(samples: int) -> None:
    """Exactly, by the binomial law: on average over all shares, and 85% in the worst case."""
    covered = []
    for true in (one / 100 for one in range(1, 100)):
        chances = (
            math.comb(samples, hits) * true**hits * (1 - true) ** (samples - hits)
            for hits in range(samples + 1)
            if abs(hits / samples - true) <= find_share_error(hits / samples, samples)
        )
        covered.append(sum(chances))
    assert sum(covered) / len(covered) > 0.935
    assert min(covered) > 0.85


def test_samples_of_unequal_weight_and_of_threads_at_one_moment_count_less() -> None:
    """Ten at 100 Hz and ten at 10 Hz are worth 12; ten threads are seen as often as one."""
    quick = [(i / 100, 0.01, 0.01, 1) for i in range(10)]
    slow = [(0.1 + i / 10, 0.1, 0.1, 1) for i in range(10)]
    assert count_equal_samples(slow) == pytest.approx(10.0)
    assert count_equal_samples([*quick, *slow]) == pytest.approx(1.1**2 / (10 * 0.1**2 + 1e-3))
    assert count_equal_samples(slow * 10) == pytest.approx(10.0)
    # A part without a sample belongs to the one before; without any there is nothing to say.
    assert count_equal_samples([*slow[:5], *((a, b, c, 0) for a, b, c, _ in slow[5:])]) < 5.0
    assert count_equal_samples([]) == count_equal_samples([(0.0, 0.1, 0.1, 0)]) == 0.0


@given(st.lists(st.tuples(st.floats(0.01, 10.0), st.integers(0, 50)), min_size=1, max_size=20))
def test_equal_samples_are_never_more_than_the_samples(parts: list[tuple[float, int]]) -> None:
    """However they are spread, and where a piece of time has none."""
    seen = [(float(i), 1.0, seconds, count) for i, (seconds, count) in enumerate(parts)]
    assert count_equal_samples(seen) <= sum(count for _, count in parts) * (1 + 1e-9)


@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(1.0, 1e4)), min_size=1, max_size=5))
def test_equal_parts_add_up_and_parts_of_unequal_rate_count_less(
    parts: list[tuple[float, float]],
) -> None:
    """Pooled samples are at most the sum: as many as the sum where all were as frequent."""
    assert pool_samples(parts) <= sum(samples for _, samples in parts) * (1 + 1e-9)
    even = [(seconds, 50.0 * seconds) for seconds, _ in parts]
    assert pool_samples(even) == pytest.approx(sum(samples for _, samples in even))


def test_the_shares_of_a_sampled_schedule_are_within_their_error() -> None:
    """Functions of random length in turns, sampled as our sampler does, in 150 jobs."""
    dice = random.Random(7)
    functions = [Function(name, "job.py", 1, False) for name in "abc"]
    missed = looked = 0
    for _ in range(150):
        schedule: list[tuple[float, int]] = []
        end = 0.0
        while end < 4.0:
            end += dice.expovariate(30.0)
            schedule.append((min(end, 4.0), dice.choices(range(3), (5, 3, 2))[0]))
        true, before = [0.0, 0.0, 0.0], 0.0
        for until, one in schedule:
            true[one] += until - before
            before = until
        cells, at, place = [], 0.0, 0
        while (step := 0.04 * dice.uniform(0.5, 1.5)) + at < 4.0:
            at += step
            while schedule[place][0] < at:
                place += 1
            cells.append((at - step / 2, 0.0, schedule[place][1], step, step, 1))
        found = build_profile(
            [RawStacks(functions, _list_stacks(3), cells)], started=0.0, duration_sec=4.0
        )
        assert found is not None
        for row in found["functions"]:
            looked += 1
            real = 100.0 * true["abc".index(row["function"])] / 4.0
            missed += abs(row["self_pct"] - real) > row["self_error_pct"]
    assert looked > 440
    assert missed / looked < 0.06


def test_a_share_is_shown_with_its_error_where_that_matters() -> None:
    """Half a point or more; without the number of samples nobody knows it."""
    row = {"self_pct": 48.31, "self_error_pct": 4.2, "total_pct": 99.0, "total_error_pct": 0.31}
    assert format_share(row, "self") == "48 ± 4%"
    assert format_share(row, "total") == "99.0%"
    assert format_share({"self_pct": 48.31}, "self") == "48.3%"


def test_the_number_of_samples_survives_and_shrinks_with_the_part_that_is_looked_at() -> None:
    """Half of the run has half of the samples: its shares are less exact."""
    path = [Function("a", "job.py", 1, False), Function("b", "job.py", 9, False)]
    cells = [(0.05 + i / 10, 0.0, i % 2, 0.1, 0.1, 1) for i in range(100)]
    found = build_profile([RawStacks(path, _list_stacks(2), cells)], started=0.0, duration_sec=10.0)
    assert found is not None
    assert found["equal_samples"] == pytest.approx({"wall": 100, "cpu": 100, "main": 100}, rel=0.01)
    tree = Profile.from_dict(found["flame"])
    assert tree is not None
    assert tree.samples == found["equal_samples"]
    whole, half = (tree.list_own(*part)[0]["main_error_s"] for part in ((0, 10), (0, 5)))
    assert half / 5 == pytest.approx(math.sqrt(2) * whole / 10, rel=0.03)
