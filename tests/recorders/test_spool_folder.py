"""Ranks of one node, as processes of this test: who waits for whom, and how long."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mlflow_perf.node.place import Node
from mlflow_perf.recorders import spool_folder as ranks
from mlflow_perf.recorders.spool_folder import SpoolFolder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks.tempfile, "gettempdir", lambda: str(tmp_path))


def _folder(rank: int, *, of: int = 2, **facts: int) -> SpoolFolder:
    node = Node(0, 1, rank, rank, of, "h", "mpich", local_size=of, **facts)
    return SpoolFolder(node, "run", parent=Path("unused"))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the waiting moves; returns each wait."""
    now, slept = [1000.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(ranks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ranks.time, "sleep", sleep)
    return slept


def test_ranks_of_a_node_share_a_folder() -> None:
    """They find each other by launcher, job and node; another node's ranks have another folder."""
    here = [_folder(0).path, _folder(1).path]
    other = SpoolFolder(Node(1, 2, 2, 0, 4, "h", "mpich"), "run", parent=Path("unused")).path
    assert here[0] == here[1] != other


def test_nobody_else_is_waited_for_after_a_while(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the first rank of a node reports, the end of a longer job takes no time."""
    monkeypatch.setattr(ranks, "_age_sec", lambda **_: 2.0)
    alone = _folder(0, of=8)
    ranks.time.sleep(6.1)
    alone.wait_for_others(30)
    assert waits == [6.1]


def test_a_rank_that_records_is_waited_for_in_bounds(
    waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """It may itself wait for us, in a barrier after our end: so not for ever, and one word."""
    first = _folder(0)
    _folder(1)
    first.wait_for_others(300)
    assert sum(waits) == pytest.approx(10, abs=0.1)
    assert [r.levelname for r in caplog.records] == ["WARNING"]


def test_a_rank_that_has_left_is_not_waited_for(waits: list[float]) -> None:
    """Once all have left, the first goes on at once."""
    first, second = _folder(0), _folder(1)
    second.leave()
    first.wait_for_others(30)
    assert waits == []


def test_a_rank_that_is_late_is_waited_for(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last to come has three times as long as the first took.

    It comes while the first waits, records, and leaves: nothing of it is lost.
    """
    monkeypatch.setattr(ranks, "_age_sec", lambda **_: 2.0)
    first, second = _folder(0, of=3), _folder(1, of=3)
    second.leave()
    sleep = ranks.time.sleep

    def come_later(seconds: float) -> None:
        sleep(seconds)
        if len(waits) == 50:
            _folder(2, of=3).leave()

    monkeypatch.setattr(ranks.time, "sleep", come_later)
    first.wait_for_others(30)
    assert len(waits) == 50


@pytest.mark.parametrize(("limit", "waited"), [(30.0, 6.0), (1.0, 1.0)])
def test_a_rank_that_never_comes_is_not_waited_for_long(
    waits: list[float], monkeypatch: pytest.MonkeyPatch, limit: float, waited: float
) -> None:
    """Three times the start of the first rank is the end of it, or the time that is left."""
    monkeypatch.setattr(ranks, "_age_sec", lambda **_: 2.0)
    first, second = _folder(0, of=3), _folder(1, of=3)
    second.leave()
    first.wait_for_others(limit)
    assert sum(waits) == pytest.approx(waited, abs=0.1)


def test_a_dead_rank_is_not_waited_for(waits: list[float]) -> None:
    """A process that is gone says nothing more."""
    first, second = _folder(0), _folder(1)
    assert second.path is not None
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    (second.path / "1.rank").write_text(str(pid))
    first.wait_for_others(30)
    assert waits == []


def test_a_process_knows_its_age() -> None:
    """The age is that of the process, and smaller for an earlier moment."""
    now = time.monotonic()
    age = ranks._age_sec(until=now)
    assert age > 0
    assert ranks._age_sec(until=now - 0.5) == pytest.approx(age - 0.5, abs=0.2)
