"""Rules of collecting: the files in the spool folder count once, and are not trusted."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import mlflow_perf
from mlflow_perf import NixlKVConnectorStats, OperationMetrics
from mlflow_perf.recorders import current, spool
from mlflow_perf.recorders.collect import collect_operations, collect_transfers


def _collected(folder: Path) -> OperationMetrics:
    recorder = OperationMetrics()
    collect_operations(folder, recorder)
    return recorder


def _count(recorder: OperationMetrics, name: str = "work") -> int:
    times = recorder.aggregate_times()
    return times[name].count if name in times else 0


def _work(number: int) -> None:
    with mlflow_perf.time("work", number):
        pass


def test_collecting_twice_changes_nothing(tmp_path: Path) -> None:
    """Each process counts once, however often its folder is collected, and merging remembers it."""
    folder = spool.create(tmp_path)
    recorder = OperationMetrics()
    current.activate(recorder, folder=folder)
    with ProcessPoolExecutor(1) as executor:
        list(executor.map(_work, range(5)))
    current.deactivate()
    collect_operations(folder, recorder)
    collect_operations(folder, recorder)
    whole = OperationMetrics()
    whole.merge(recorder)
    collect_operations(folder, whole)
    assert _count(recorder) == _count(whole) == 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spool folder with one good file of two records."""
    folder = spool.create(tmp_path)
    recorder = OperationMetrics()
    recorder.spool_to(folder)
    recorder.add_time("work", None, 1.0)
    recorder.add_time("work", None, 1.0)
    recorder.spool_to(None)
    return folder


@pytest.mark.parametrize(
    "content",
    [b"", b"MLPERF1\n", b"x" * 100, b"MLPERF1\n" + b"\xff" * 100,
     b"MLPERF1\n" + (2).to_bytes(8, "little") + b"[]      ",
     b"MLPERF1\n" + (4).to_bytes(8, "little") + b"nope    "],
)  # fmt: skip
def test_damaged_file(folder: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged file is left out with one warning; the others count."""
    (folder / "ops-1-bad.spool").write_bytes(content)
    (folder / "ops-2-bad.spool").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert _count(_collected(folder)) == 2
    assert len(caplog.records) == 1


def test_snapshot_that_is_not_ours(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A snapshot with wrong content is left out with a warning."""
    text = json.dumps({"times": {"work": {"count": -1}}}).encode()
    head = b"MLPERF1\n" + len(text).to_bytes(8, "little")
    (folder / "ops-1-bad.spool").write_bytes(head + text)
    with caplog.at_level(logging.WARNING):
        assert _count(_collected(folder)) == 2
    assert "cannot be read" in caplog.text


def test_any_cut(folder: Path) -> None:
    """A file cut anywhere gives a part of its records or is left out; it never raises."""
    (path,) = folder.iterdir()
    content = path.read_bytes()
    for length in range(0, 300, 7):
        path.write_bytes(content[:length])
        assert _count(_collected(folder)) <= 2


def test_links_and_pipes(folder: Path, tmp_path: Path) -> None:
    """A link is not followed, a pipe not waited for, a folder not entered."""
    (good,) = folder.iterdir()
    outside = tmp_path / "outside.spool"
    outside.write_bytes(good.read_bytes())
    (folder / "ops-1-link.spool").symlink_to(outside)
    os.mkfifo(folder / "ops-2-pipe.spool")
    (folder / "ops-3-folder.spool").mkdir()
    assert _count(_collected(folder)) == 2


def test_half_made_file_is_left_out(folder: Path) -> None:
    """A file that a killed process had only begun is not read."""
    (good,) = folder.iterdir()
    (folder / f".{good.name}").write_bytes(good.read_bytes())
    assert _count(_collected(folder)) == 2


def test_folder_that_is_gone(tmp_path: Path) -> None:
    """Draining a folder that is not there adds nothing and raises nothing."""
    assert _collected(tmp_path / "none").is_empty()


def test_damaged_transfers_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file of transfers with wrong content is left out with a warning; the others count."""
    folder = spool.create(tmp_path)
    stats = NixlKVConnectorStats()
    stats.spool_to(folder, "nixl")
    stats.record_failed_transfer()
    stats.spool_to(None, "nixl")
    text = b'{"name": "nixl", "stats": {"num_failed_transfers": -1}}'
    head = b"MLPERF1\n" + len(text).to_bytes(8, "little")
    (folder / "kv-1-bad.spool").write_bytes(head + text + bytes(100))
    found = collect_transfers(folder)
    assert found["nixl"].figures()["num_failed_transfers"] == 1
    assert "cannot be read" in caplog.text


def test_transfers_of_this_process_alone() -> None:
    """Without a folder only this process's own sums are there, by name, without empty ones."""
    own = {"nixl": NixlKVConnectorStats(), "empty": NixlKVConnectorStats()}
    own["nixl"].record_failed_transfer()
    assert list(collect_transfers(None, own)) == ["nixl"]
    assert collect_transfers(None) == {}
