"""Which blocks of the ranks belong together."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from mlflow_perf.node.exit_cause import machine_id
from mlflow_perf.recorders import rank_turn
from mlflow_perf.recorders.rank_turn import RankTurn, is_left_over


@pytest.fixture(autouse=True)
def _no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_turn, "_last", {})


class _Ranks:
    """Two ranks of a job; the first one leads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "spool"
        self._named: dict[Path, str] = {}  # folder → name of the other rank's block

    def begin(self, rank: int, block: str = "b") -> RankTurn:
        def list_waiting(folder: Path) -> list[str]:
            return [self._named[folder]] if self._named.get(folder) else []

        leads = rank == 0
        turn = RankTurn(self._folder, block, rank, leads=leads, list_waiting=list_waiting)
        if not leads:
            self._named[turn.folder] = turn.name
        return turn


@pytest.fixture
def ranks(tmp_path: Path) -> _Ranks:
    return _Ranks(tmp_path)


@pytest.mark.parametrize("ahead", [0, 1])
def test_equal_blocks_meet_whoever_is_ahead(ranks: _Ranks, ahead: int) -> None:
    """A barrier lets one rank go a moment before the other."""
    turns = [ranks.begin(0), ranks.begin(1)]
    met = set[Path]()
    for _ in range(3):
        assert turns[0].folder == turns[1].folder
        met.add(turns[0].folder)
        for rank in (ahead, 1 - ahead):
            turns[rank].end()
            turns[rank].close()
            turns[rank] = ranks.begin(rank)
    assert len(met) == 3


def _end(*turns: RankTurn) -> None:
    for turn in turns:
        turn.end()
    for turn in turns:
        turn.close()


def test_a_block_before_all_others_is_of_the_first_rank_alone(ranks: _Ranks) -> None:
    """It prepares the data, for which the others wait at a barrier."""
    prepare = ranks.begin(0, "prepare")
    _end(prepare)
    trains = [ranks.begin(1, "train"), ranks.begin(0, "train")]
    assert trains[0].folder == trains[1].folder != prepare.folder


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_block_between_others_is_of_the_first_rank_alone(ranks: _Ranks, is_ahead: bool) -> None:
    """It evaluates after each epoch, while the others wait in the next one for it."""
    trains = [ranks.begin(0, "train"), ranks.begin(1, "train")]
    for _ in range(3):
        assert trains[0].folder == trains[1].folder
        _end(*trains)
        ahead = ranks.begin(1, "train") if is_ahead else None
        evaluate = ranks.begin(0, "evaluate")
        other = ahead or ranks.begin(1, "train")
        assert evaluate.folder not in (other.folder, trains[0].folder)
        _end(evaluate)
        trains = [ranks.begin(0, "train"), other]


def test_ranks_whose_blocks_have_names_of_their_own_meet(ranks: _Ranks) -> None:
    """`report(f"worker-{rank}")`."""
    for epoch in range(3):
        workers = [ranks.begin(rank, f"{epoch}-{rank}") for rank in range(2)]
        assert workers[0].folder == workers[1].folder
        _end(*workers)


def test_a_rank_that_starts_late_comes_to_the_block_that_waits_for_it(ranks: _Ranks) -> None:
    """The first rank's block is over, and waits for those that the launcher starts late."""
    first = ranks.begin(0)
    first.end()
    assert ranks.begin(1).folder == first.folder


def test_parts_within_one_block_of_the_first_rank_are_in_its_folder(ranks: _Ranks) -> None:
    """The first rank has one block around all; the others have one for each phase."""
    around = ranks.begin(0, "job")
    for phase in ("load", "train"):
        part = ranks.begin(1, phase)
        assert part.folder == around.folder
        part.end()


def test_what_an_earlier_job_has_left_counts_nothing(ranks: _Ranks, tmp_path: Path) -> None:
    """Its first rank was killed, so its file stayed."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / "spool.turn").write_text(f"{dead.pid}  7 1 b")
    assert ranks.begin(1).folder == tmp_path / "spool"
    (tmp_path / "spool.turn").write_text("no turn")
    assert ranks.begin(1).folder == tmp_path / "spool"


def test_the_file_is_removed_at_the_exit(ranks: _Ranks, tmp_path: Path) -> None:
    """By the process that wrote it."""
    ranks.begin(1)
    turn = ranks.begin(0)
    assert (tmp_path / "spool.turn").exists()
    turn._pid = 1
    turn.forget()
    assert (tmp_path / "spool.turn").exists()
    turn._pid = os.getpid()
    turn.forget()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("machine", "days", "is_dead"),
    [(machine_id(), 0, True), ("another", 29, False), ("another", 31, True)],
)
def test_the_file_of_a_dead_rank_is_left_over(
    tmp_path: Path, machine: str, days: int, is_dead: bool
) -> None:
    """One of another machine cannot be seen, whether it lives or not: it is given a month."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    mine, left = tmp_path / "0.rank", tmp_path / "1.rank"
    for file, pid in ((mine, os.getpid()), (left, dead.pid)):
        file.write_text(f"{pid} {machine}")
        then = time.time() - days * 24 * 3600
        os.utime(file, (then, then))
    assert not is_left_over(mine)
    assert is_left_over(left) == is_dead
    left.write_text("nothing of ours")
    assert not is_left_over(left)
