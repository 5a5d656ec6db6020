"""The readers of one job together."""

from __future__ import annotations

import math

import pytest

from mlflow_perf.records import Kind
from mlflow_perf.sampling.reader_set import ReaderSet
from mlflow_perf.sampling.sampler import PerformanceReportingThread
from mlflow_perf.testing import FakeClock, FakeReader


def test_a_failing_source_costs_only_itself_and_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A source that raises leaves its values out; the others and later reports go on."""
    good = FakeReader([{"mem_percent": 5.0}])
    bad = FakeReader(
        [{"disk_io_read_mb": 1.0}, OSError("gone"), OSError("gone"), {"disk_io_read_mb": 4.0}]
    )
    reports: list[dict[str, float]] = []
    thread = PerformanceReportingThread(
        callback_on_loop=reports.append, readers=[bad, good], clock=FakeClock(stop_after=3.0)
    )
    thread.start()
    thread.join()
    assert [r.get("disk_io_read_mb") for r in reports] == [0.0, None, None, 3.0]
    assert all(r["mem_percent"] == 5.0 for r in reports)
    (warning,) = [r for r in caplog.records if "cannot be read" in r.message]
    assert warning.message.endswith("until it can be: OSError: gone")
    assert warning.exc_info is None  # one line, not a traceback of our own code
    assert bad.closed
    assert good.closed


def test_values_that_are_not_finite_are_left_out() -> None:
    """NaN and infinity from a source never reach a report."""
    reader = FakeReader([{"mem_percent": math.nan, "disk_io_read_mb": math.inf}])
    assert ReaderSet([reader]).read({"timestamp": 1.0}) == {"timestamp": 1.0}


def test_a_counter_counts_from_the_first_read_and_survives_a_reset() -> None:
    """The first reading is zero; a counter that falls loses nothing and goes on from there."""
    levels = [{"disk_io_read_mb": level} for level in (500.0, 510.0, 3.0, 5.0)]
    readers = ReaderSet([FakeReader(levels)])
    assert [readers.read({})["disk_io_read_mb"] for _ in levels] == [0.0, 10.0, 10.0, 12.0]


def test_a_counter_that_was_0_at_the_start_counts_when_it_is_read_late() -> None:
    """The switches of a command are known when it has ended: the one value is their number."""
    readers = ReaderSet([FakeReader([{"mem_percent": 1.0}, {"job_voluntary_switches": 904.0}])])
    assert [readers.read({}).get("job_voluntary_switches") for _ in range(2)] == [None, 904.0]


def test_kinds_come_from_the_readers_first() -> None:
    """A counter that a reader declares is a counter; any other column is as our table says."""
    readers = ReaderSet([FakeReader([], counters=["jobs_done"])])
    assert "jobs_done" in readers.counters
    assert readers.kind("jobs_done") is Kind.COUNTER
    assert readers.kind("mem_percent") is Kind.GAUGE


class PeakRecorder(FakeReader):
    """A reader with peaks, which fails at the first one."""

    peaks = 0

    def sample_peak(self) -> None:
        self.peaks += 1
        if self.peaks == 1:
            raise OSError("gone")


def test_peaks_are_sampled_only_where_there_are_some(caplog: pytest.LogCaptureFixture) -> None:
    """Readers without peaks are left alone; a failure is one warning."""
    plain, peaky = FakeReader([]), PeakRecorder([])
    readers = ReaderSet([plain, peaky])
    assert readers.has_peaks
    assert not ReaderSet([plain]).has_peaks
    readers.sample_peak()
    readers.sample_peak()
    assert peaky.peaks == 2
    assert len(caplog.records) == 1


def test_closing_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A reader that fails to close does not keep the others open."""

    class Stuck(FakeReader):
        def close(self) -> None:
            raise OSError("stuck")

    last = FakeReader([])
    ReaderSet([Stuck([], name="stuck"), last]).close()
    assert last.closed
    assert "'stuck'" in caplog.text
