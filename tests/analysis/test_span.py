"""What a job would have used with the node to itself, and how far small requests kept it busy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.span_samples import SPAN

SHARE = st.floats(0, 1)


@given(
    used=st.floats(0, 4), delay=st.none() | SHARE, stolen=SHARE, stall=SHARE, turns=SHARE,
    threads=st.floats(1, 64), processes=st.floats(0, 64), node_used=st.floats(0, 8),
)  # fmt: skip
def test_a_job_wants_at_least_what_it_used(
    used: float, delay: float | None, stolen: float, stall: float, turns: float,
    threads: float, processes: float, node_used: float,
) -> None:  # fmt: skip
    """Whatever was lost comes on top."""
    span = replace(
        SPAN, used=used, run_delay=delay, stolen=stolen, cpu_stall=stall, takes_turns=turns,
        most_busy=threads, processes=processes, node_used=node_used,
    )  # fmt: skip
    assert span.demand >= used - 1e-9


def test_half_of_the_runnable_time_on_the_queue_is_half_of_what_is_wanted() -> None:
    """A thread that ran for half of the time in which it could wants a whole CPU."""
    assert replace(SPAN, used=0.5, run_delay=0.5).demand == pytest.approx(1.0)


def test_threads_that_take_turns_do_not_lack_cpus() -> None:
    """Python's lock lets one run at a time, however many are runnable for a moment."""
    turns = replace(SPAN, used=0.95, run_delay=0.4, takes_turns=1.0)
    assert turns.demand == pytest.approx(1.0)


def test_a_host_and_others_take_their_parts_one_after_the_other() -> None:
    """0.14 CPUs used, 0.06 stolen and 0.28 waited for are 0.48 wanted, not 0.6."""
    span = replace(SPAN, used=0.136, stolen=0.32, run_delay=0.67)
    assert span.demand == pytest.approx(0.136 + 0.064 + 0.276, abs=0.001)


def test_a_host_takes_no_more_than_the_threads_that_can_run_lack() -> None:
    """One thread that kept a CPU busy for 90% of the time lost at most the rest."""
    stolen = replace(SPAN, used=0.9, stolen=0.4)
    assert stolen.demand == pytest.approx(1.5)
    assert replace(stolen, most_busy=1.0).demand == pytest.approx(1.0)


def test_without_a_count_of_the_waiting_it_is_estimated_from_the_nodes_stalls() -> None:
    """A single thread lacks at most one CPU; a sleeper lacks none."""
    lone = replace(SPAN, used=0.6, run_delay=None, peak_used=0.6, cpu_stall=0.2)
    assert lone.demand == pytest.approx(0.8)
    assert replace(lone, used=0.01).demand == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 1.0),
        ({"own_io": False}, 0.0),
        ({"calls_per_sec": 1_000.0}, 0.0),
        ({"calls_mb_s": 700.0}, 0.0),
        ({"system": 0.2}, 0.0),
        ({"calls_mb_s": None, "system": None}, 1.0),
    ],
)
def test_small_requests_are_many_small_and_the_kernels_work(
    change: dict[str, float | None], expected: float
) -> None:
    """Older documents do not tell the kernel's part: their requests count by number and size."""
    many = replace(
        SPAN, used=0.9, disk_mb_s=6.0, calls_per_sec=6_000.0, calls_mb_s=12.0, system=0.6
    )
    changed = replace(many, **change)  # type: ignore[arg-type]
    assert changed.small_requests == pytest.approx(expected)
