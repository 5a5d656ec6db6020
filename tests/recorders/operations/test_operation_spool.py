"""Rules of the spool file of operations: it always gives exactly what was recorded."""

from __future__ import annotations

import logging
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf import OperationMetrics
from mlflow_perf.core import originals
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.collect import collect_operations

record = st.tuples(
    st.sampled_from(["time", "count", "big", "float", "attribute"]),
    st.sampled_from(["a", "b.c"]),
    st.sampled_from([None, "k", ("k", 1)]),
    st.integers(min_value=0, max_value=1000),
)


def _collected(folder: Path) -> OperationMetrics:
    recorder = OperationMetrics()
    collect_operations(folder, recorder)
    return recorder


def _count(recorder: OperationMetrics, name: str = "work") -> int:
    times = recorder.aggregate_times()
    return times[name].count if name in times else 0


def test_threads_of_a_worker(tmp_path: Path) -> None:
    """What several threads of one worker record is in its file, each record once."""
    folder = spool.create(tmp_path)
    recorder = OperationMetrics()
    recorder.spool_to(folder)

    def work(number: int) -> None:
        for _ in range(3000):
            recorder.add_time("work", number % 2, 1.0)
            recorder.add_counter("done", None, 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    collected = _collected(folder)
    recorder.spool_to(None)
    assert _count(collected) == 12_000
    assert collected.aggregate_counters() == {"done": 12_000}


def test_file_grows_with_what_is_recorded(tmp_path: Path) -> None:
    """Few records take little room, and many records need few new files."""
    sizes = []
    for count in (1, 100_000):
        folder = spool.create(tmp_path)
        recorder = OperationMetrics()
        recorder.spool_to(folder)
        for _ in range(count):
            recorder.add_time("work", None, 1.0)
        (file,) = folder.iterdir()
        sizes.append(file.stat().st_size)
        assert _count(_collected(folder)) == count
        recorder.spool_to(None)
    assert sizes[0] < 10_000
    assert sizes[1] < 600_000


@settings(deadline=None)
@given(st.lists(record, max_size=20), st.integers(min_value=1, max_value=60))
def test_replay_gives_what_was_recorded(made: list[Any], copies: int) -> None:
    """At any instant the file gives exactly what its process recorded, through new files too."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "_FIRST_ROOM", 480)
        patch.setattr(spool, "_ROOM", 480)
        patch.setattr(spool, "_ROOM_PER_SNAPSHOT", 0)
        recorder = OperationMetrics()
        recorder.spool_to(Path(name))
        for kind, operation, key, value in made * copies:
            if kind == "time":
                recorder.add_time(operation, key, float(value))
            elif kind == "attribute":
                recorder.add_attribute(operation, key, {"value": value})
            else:
                amount: float = {"count": value, "big": 10**20, "float": value / 2}[kind]
                recorder.add_counter(operation, key, amount)
        again = _collected(Path(name))
        recorder.spool_to(None)
        assert again.as_dict(max_keys=None) == recorder.as_dict(max_keys=None)


def test_file_that_goes_on_is_whole(tmp_path: Path) -> None:
    """Reading while the writer is still at work gives all records so far."""
    folder = spool.create(tmp_path)
    other = OperationMetrics()
    other.spool_to(folder)
    for number in range(40_000):
        other.add_time("work", None, 1.0)
        if number % 10_000 == 0:
            assert _count(_collected(folder)) == number + 1
    assert _count(_collected(folder)) == 40_000
    other.spool_to(None)


class TestFaults:
    """A fault of the spool never reaches who records."""

    def test_folder_that_cannot_be_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Without room or right to write, there is one warning and recording goes on in memory."""
        blocked = tmp_path / "file"
        blocked.write_text("not a folder")
        recorder = OperationMetrics()
        recorder.spool_to(blocked)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                recorder.add_time("work", None, 1.0)
        assert len(caplog.records) == 1
        assert _count(recorder) == 3

    def test_disk_that_fills_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """When no new file can be made, the old one stays, with one warning."""

        def full(*args: int) -> None:
            raise OSError(28, "No space left on device")

        folder = spool.create(tmp_path)
        recorder = OperationMetrics()
        recorder.spool_to(folder)
        recorder.add_time("work", None, 1.0)
        monkeypatch.setattr(originals.os, "posix_fallocate", full)
        with caplog.at_level(logging.WARNING):
            for _ in range(20_000):
                recorder.add_time("work", None, 1.0)
        assert len(caplog.records) == 1
        assert _count(recorder) == 20_001
        assert 300 < _count(_collected(folder)) < 20_001
        assert len(list(folder.iterdir())) == 1

    def test_folder_removed_by_the_session(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A worker that outlives the session records on without a word."""
        folder = spool.create(tmp_path)
        recorder = OperationMetrics()
        recorder.spool_to(folder)
        recorder.add_time("work", None, 1.0)
        spool.remove(folder)
        with caplog.at_level(logging.WARNING):
            for _ in range(20_000):
                recorder.add_time("work", None, 1.0)
        assert caplog.records == []
