"""Rules of recording transfers for a session, from any process of the job."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_perf import NixlKVConnectorStats
from mlflow_perf.recorders import spool, transfers

TELEMETRY = SimpleNamespace(xferDuration=1000, postDuration=10, totalBytes=2**20, descCount=2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The spool folder of a session that is on."""
    folder = spool.create(tmp_path)
    monkeypatch.setenv(spool.VARIABLE, str(folder))
    transfers.activate(folder)
    yield folder
    monkeypatch.delenv(spool.VARIABLE)
    transfers.deactivate()


def _work(kill: bool = False) -> None:
    stats = transfers.record("nixl")
    for _ in range(3):
        stats.record_transfer(TELEMETRY)  # type: ignore[arg-type]
    stats.record_failed_transfer()
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)


def _sums(folder: Path | None) -> tuple[int, float]:
    stats = transfers.collect(folder).get("nixl", NixlKVConnectorStats())
    return stats.num_successful_transfers, stats.figures()["num_failed_transfers"]


def test_without_a_session_statistics_are_just_statistics() -> None:
    """Record works without a session, and nothing is kept of it."""
    stats = transfers.record("nixl")
    stats.record_failed_transfer()
    assert not stats.is_empty()
    assert transfers.collect() == {}


def test_resetting_takes_nothing_from_the_session(folder: Path) -> None:
    """Statistics can be handed over and emptied, as a connector does: the session's sums stay."""
    stats = transfers.record("nixl")
    for _ in range(3):
        stats.record_transfer(TELEMETRY)  # type: ignore[arg-type]
        stats.clone_and_reset()
    transfers.record("nixl").record_failed_transfer()
    assert _sums(folder) == (3, 1)


def test_aggregating_counts_once(folder: Path) -> None:
    """What the session does not know is counted when aggregated; what it knows is not again."""
    foreign = NixlKVConnectorStats()
    foreign.record_failed_transfer()
    known = transfers.record("nixl")
    known.record_failed_transfer()
    transfers.record("nixl").aggregate(foreign).aggregate(known)
    assert _sums(folder) == (0, 2)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kill", [False, True])
def test_all_processes_arrive(folder: Path, method: str, kill: bool) -> None:
    """What children recorded arrives once, killed right after it or not; the parent's stays."""
    _work()
    context: Any = multiprocessing.get_context(method)
    children = [context.Process(target=_work, args=(kill,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert _sums(folder) == _sums(folder) == (9, 3)


def test_statistics_made_before_a_fork_go_on_in_the_child(folder: Path) -> None:
    """Statistics that a child inherits count for the child from the fork on."""
    stats = transfers.record("nixl")
    stats.record_failed_transfer()
    child = os.fork()
    if child == 0:
        stats.record_failed_transfer()
        os._exit(0)
    os.waitpid(child, 0)
    stats.record_failed_transfer()
    assert _sums(folder) == (0, 3)


def test_a_rank_that_does_not_collect_writes_to_the_folder(folder: Path) -> None:
    """With spooled, this process's own sums are in its file, and it does not tell them twice."""
    transfers.activate(folder, spooled=True)
    _work()
    assert _sums(folder) == (3, 1)
    transfers.activate(folder)
    assert _sums(folder) == (3, 1)


def test_aggregate_reaches_the_file(folder: Path) -> None:
    """What a spooled process takes in from other statistics is in its file too."""
    foreign = NixlKVConnectorStats()
    foreign.record_failed_transfer()
    transfers.activate(folder, spooled=True)
    transfers.record("nixl").aggregate(foreign)
    transfers.activate(folder)
    assert _sums(folder) == (0, 1)


def test_many_transfers_go_on_in_a_new_file(folder: Path) -> None:
    """When the room of a file is used up, all that was recorded is in the next one."""
    transfers.activate(folder, spooled=True)
    stats = transfers.record("nixl")
    for _ in range(12_000):
        stats.record_transfer(TELEMETRY)  # type: ignore[arg-type]
    transfers.activate(folder)
    assert _sums(folder) == (12_000, 0)
    assert len(list(folder.iterdir())) == 1


def test_damaged_file_is_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file with wrong content is left out with a warning; the others count."""
    child = os.fork()
    if child == 0:
        _work()
        os._exit(0)
    os.waitpid(child, 0)
    text = b'{"name": "nixl", "stats": {"num_failed_transfers": -1}}'
    head = b"MLPERF1\n" + len(text).to_bytes(8, "little")
    (folder / "kv-1-bad.spool").write_bytes(head + text + bytes(100))
    assert _sums(folder) == (3, 1)
    assert "cannot be read" in caplog.text


def test_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a right to write there is one warning, and recording goes on."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    transfers.activate(blocked, spooled=True)
    _work()
    assert _sums(None) == (3, 1)
    transfers.deactivate()
    assert len(caplog.records) == 1
