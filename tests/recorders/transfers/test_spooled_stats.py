"""Rules of the spool file of transfers: it always gives exactly what was recorded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_perf import NixlKVConnectorStats
from mlflow_perf.recorders.collect import collect_transfers

TELEMETRY: Any = SimpleNamespace(xferDuration=1000, postDuration=10, totalBytes=2**20, descCount=2)


@pytest.fixture
def stats(tmp_path: Path) -> NixlKVConnectorStats:
    """Statistics that write to a spool folder."""
    made = NixlKVConnectorStats()
    made.spool_to(tmp_path, "nixl")
    return made


def _sums(folder: Path) -> tuple[int, float]:
    found = collect_transfers(folder)["nixl"]
    return found.num_successful_transfers, found.figures()["num_failed_transfers"]


def test_transfers_and_events_are_in_the_file(stats: NixlKVConnectorStats, tmp_path: Path) -> None:
    """Each transfer and each failure can be read at once; nothing recorded, no file."""
    assert list(tmp_path.iterdir()) == []
    for _ in range(3):
        stats.record_transfer(TELEMETRY)
    stats.record_failed_transfer()
    assert _sums(tmp_path) == (3, 1)


def test_aggregate_reaches_the_file(stats: NixlKVConnectorStats, tmp_path: Path) -> None:
    """Statistics that are aggregated into spooled ones are in the file too."""
    foreign = NixlKVConnectorStats()
    foreign.record_failed_transfer()
    stats.record_failed_transfer()
    stats.aggregate(foreign)
    assert _sums(tmp_path) == (0, 2)


def test_many_transfers_go_on_in_a_new_file(stats: NixlKVConnectorStats, tmp_path: Path) -> None:
    """When the room of a file is used up, the next one has everything recorded so far."""
    for _ in range(12_000):
        stats.record_transfer(TELEMETRY)
    assert _sums(tmp_path) == (12_000, 0)
    assert len(list(tmp_path.iterdir())) == 1


def test_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that cannot be written costs one warning, and recording continues."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    stats = NixlKVConnectorStats()
    stats.spool_to(blocked, "nixl")
    for _ in range(3):
        stats.record_transfer(TELEMETRY)
    stats.record_failed_transfer()
    assert stats.num_successful_transfers == 3
    assert len(caplog.records) == 1
