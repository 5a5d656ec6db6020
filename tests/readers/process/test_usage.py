"""What processes used is added up, and never falls."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from mlflow_perf.readers.process.usage import Usage

USAGE = Usage(
    cpu_sec=2.0,
    system_sec=0.5,
    read_bytes=1 << 20,
    write_bytes=2 << 20,
    read_calls=10,
    write_calls=20,
    called_bytes=4 << 20,
)
FIELDS = [field.name for field in fields(Usage)]


def test_two_usages_are_added_up_in_each_figure() -> None:
    """No figure is forgotten."""
    total = replace(USAGE)
    total.add(USAGE)
    assert {name: getattr(total, name) for name in FIELDS} == {
        name: 2 * getattr(USAGE, name) for name in FIELDS
    }


@pytest.mark.parametrize("name", FIELDS)
def test_a_figure_grows_with_the_process_and_never_falls(name: str) -> None:
    """A process that the kernel counts anew, or whose children are reaped, loses nothing."""
    grown = Usage()
    grown.raise_to(USAGE, since=Usage())
    assert grown == USAGE
    grown.raise_to(replace(USAGE, **{name: 0}), since=Usage())
    assert grown == USAGE
    grown.raise_to(USAGE, since=replace(USAGE))
    assert grown == USAGE
    more = replace(USAGE, **{name: 3 * getattr(USAGE, name)})
    grown.raise_to(more, since=Usage())
    assert grown == more


def test_a_report_has_all_figures_in_its_units() -> None:
    """Bytes become MB."""
    assert USAGE.as_report() == {
        "job_cpu_sec": 2.0,
        "job_system_sec": 0.5,
        "job_io_read_mb": 1.0,
        "job_io_write_mb": 2.0,
        "job_read_calls": 10.0,
        "job_write_calls": 20.0,
        "job_calls_mb": 4.0,
    }
