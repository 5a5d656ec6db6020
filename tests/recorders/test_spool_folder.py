"""Rules of the ranks of one node, here in one process: which rank waits for which, and how long."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from mlflow_perf.node.place import Node
from mlflow_perf.recorders import rank_turn, spool_folder
from mlflow_perf.recorders.rank_commands import RankCommand, RankGoneError
from mlflow_perf.recorders.spool_folder import SpoolFolder, remove_dead_ranks


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(rank_turn, "_last", {})
    monkeypatch.setattr(spool_folder, "_told_of_early", [])


def _folder(rank: int, *, ranks: int = 2) -> SpoolFolder:
    node = Node(0, 1, rank, rank, ranks, "h", "mpich", local_size=ranks)
    return SpoolFolder(node, "run", parent=Path("unused"))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the waiting moves, in a process two seconds old; returns each wait."""
    now = [1000.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(spool_folder, "process_age_sec", lambda **_: 2.0)
    return slept


def test_only_what_dead_processes_left_empty_is_removed(tmp_path: Path) -> None:
    """A folder with records may have its journal elsewhere, and this process is alive."""
    node = Node(0, 1, 0, 0, 1, "h", "local")
    mine = SpoolFolder(node, "run", parent=tmp_path).path
    assert mine is not None
    dead = subprocess.Popen(["true"])
    dead.wait()
    empty, full, elsewhere = (
        tmp_path / mine.name.replace(f"_{os.getpid()}_", f"_{dead.pid}_") for _ in range(3)
    )
    full, elsewhere = (
        full.with_name(f"{full.name}2"),
        tmp_path / f"mlflow-perf-spool-0_{dead.pid}_x",
    )
    for folder in (empty, full, elsewhere):
        folder.mkdir()
    (full / "x.spool").touch()
    next_one = SpoolFolder(node, "run", parent=tmp_path).path
    assert {*tmp_path.iterdir()} == {mine, full, elsewhere, next_one}


def test_ranks_of_a_node_share_a_folder() -> None:
    """They derive it from launcher, job and node; ranks of another node have another folder."""
    here = [_folder(0).path, _folder(1).path]
    other = SpoolFolder(Node(1, 2, 2, 0, 4, "h", "mpich"), "run", parent=Path("unused")).path
    assert here[0] == here[1] != other


def test_blocks_below_wrapped_ranks_have_a_folder_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has another parent, its wrapper; and whoever ends first leaves the wrappers theirs."""

    def join(rank: int, parent_pid: int) -> SpoolFolder:
        monkeypatch.setattr(os, "getppid", lambda: parent_pid)
        node = Node(0, 1, rank, rank, 2, "h", "mpich", local_size=2)
        return SpoolFolder(node, None, parent=Path("unused"))

    wrappers = [join(rank, 1) for rank in range(2)]
    assert wrappers[0].path == wrappers[1].path
    for wrapper in wrappers:
        assert wrapper.commands is not None
        wrapper.commands.note(RankCommand(5))
    monkeypatch.setenv("MLFLOW_PERF_SPOOL", str(wrappers[0].path))
    block = join(0, 2)
    assert block.above is not None
    assert block.above.read_own() == RankCommand(5)
    blocks = block.path
    assert blocks == join(1, 3).path
    assert blocks != wrappers[0].path
    # One wrapper around all ranks tells two launchers below it apart by their processes.
    monkeypatch.setenv("MLFLOW_PERF_SPOOL", "/tmp/mlflow-perf-spool-1_2_x")
    assert join(0, 2).path != join(1, 3).path


def test_a_single_process_has_a_private_folder(tmp_path: Path) -> None:
    """A job of one process shares its folder with no other job, and waits for nobody."""
    node = Node(0, 1, 0, 0, 1, "h", "local")
    first, second = (SpoolFolder(node, "run", parent=tmp_path / "new") for _ in range(2))
    assert first.path is not None
    assert second.path is not None
    assert first.path != second.path
    assert first.path.parent == tmp_path / "new"
    first.wait_for_others(30)
    first.remove()
    assert not first.path.exists()


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that another user prepared is not entered: one warning, and only this process."""
    other = os.getuid() + 1
    (tmp_path / f"mlflow-perf-{other}").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert _folder(0).path is None
    assert "belongs to another user" in caplog.text


def test_a_rank_waits_for_the_run_of_the_one_that_samples(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes a little later, and has no run at first; one that never comes is awaited once."""
    monkeypatch.setattr(spool_folder, "_patience_sec", 1.0)
    other = _folder(1)
    said = [None, None, "", "", "abc"]
    monkeypatch.setattr(other, "read_run", lambda: said.pop(0))
    assert other.await_run(5.0) == "abc"
    assert (said, len(waits)) == ([], 4)
    for run_id, longest_sec in (("", 5.0), (None, 1.0), (None, 0.0), ("", 5.0)):
        waits.clear()
        monkeypatch.setattr(other, "read_run", lambda run_id=run_id: run_id)
        assert other.await_run(5.0) is None
        assert sum(waits) == pytest.approx(longest_sec, abs=0.03)


def test_a_long_job_does_not_wait_for_ranks_that_never_started(waits: list[float]) -> None:
    """Where only the first rank of a node reports, the end of a longer job takes no time."""
    alone = _folder(0, ranks=8)
    time.sleep(6.1)
    alone.wait_for_others(30)
    assert waits == [6.1]


@pytest.mark.parametrize(("briefly", "sec"), [(False, 10), (True, 2)])
def test_a_rank_that_records_is_waited_for_in_bounds(
    waits: list[float], caplog: pytest.LogCaptureFixture, briefly: bool, sec: float
) -> None:
    """It may itself wait for this rank, at a barrier: so not for ever, and with one warning."""
    first = _folder(0)
    _folder(1)
    first.wait_for_others(300, briefly=briefly)
    assert sum(waits) == pytest.approx(sec, abs=0.1)
    assert [r.levelname for r in caplog.records] == ["WARNING"]


def test_a_rank_that_has_left_is_not_waited_for(waits: list[float]) -> None:
    """Once all others have left, the first rank goes on at once."""
    first, second = _folder(0), _folder(1)
    second.leave()
    first.wait_for_others(30)
    assert waits == []


def test_a_rank_that_is_late_is_waited_for(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rank may take three times as long to start as the first.

    It starts while the first rank waits, records, and leaves: no record of it is lost.
    """
    first, second = _folder(0, ranks=3), _folder(1, ranks=3)
    second.leave()
    sleep = time.sleep

    def start_later(seconds: float) -> None:
        sleep(seconds)
        if len(waits) == 50:
            _folder(2, ranks=3).leave()

    monkeypatch.setattr(time, "sleep", start_later)
    first.wait_for_others(30)
    assert len(waits) == 50


@pytest.mark.parametrize(("limit", "waited"), [(30.0, 6.0), (1.0, 1.0)])
def test_a_rank_that_never_starts_is_not_waited_for_long(
    waits: list[float], limit: float, waited: float
) -> None:
    """The wait ends after three times the start of the first rank, or after the time limit."""
    first, second = _folder(0, ranks=3), _folder(1, ranks=3)
    second.leave()
    first.wait_for_others(limit)
    assert sum(waits) == pytest.approx(waited, abs=0.1)


def test_a_rank_in_its_next_block_is_not_waited_for(waits: list[float]) -> None:
    """It left a barrier a moment before this rank, ended its block, and has begun the next one."""
    first, second = _folder(0), _folder(1)
    second.leave()
    ahead = _folder(1)
    first.wait_for_others(30)
    assert (waits, ahead.path == first.path) == ([], False)
    first.remove()
    assert _folder(0).path == ahead.path  # whose records are in its report
    assert ahead.path is not None
    assert ahead.path.exists()


def test_a_later_block_waits_briefly_for_ranks_without_one(waits: list[float]) -> None:
    """Only the first rank evaluates; the start of the processes was long ago."""
    first, second = _folder(0), _folder(1)
    second.leave()
    first.wait_for_others(30)
    first.remove()
    time.sleep(0.1)
    alone = _folder(0)
    alone.wait_for_others(30)
    assert sum(waits) == pytest.approx(0.1 + 3 * 0.1, abs=0.03)


def test_a_dead_rank_is_not_waited_for(waits: list[float]) -> None:
    """A rank that has ended records nothing more."""
    first, second = _folder(0), _folder(1)
    assert second.path is not None
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    (second.path / "1.rank").write_text(str(pid))
    first.wait_for_others(30)
    assert waits == []


def _die_in_a_block(rank: int) -> None:
    """Let a process of its own begin to record as a rank, and end without a word."""
    pid = os.fork()
    if pid == 0:
        _folder(rank, ranks=3)
        os._exit(0)
    os.waitpid(pid, 0)


def test_a_rank_says_how_its_block_ended_and_one_that_died_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others' ends are known, not one's own; the next block knows of none."""
    first, second = _folder(0, ranks=3), _folder(1, ranks=3)
    _die_in_a_block(2)
    first.leave("FINISHED")
    second.leave("FAILED", "ValueError")
    killed = RankCommand(0, 0.0, "KILLED", spool_folder._WORDLESS)
    failed = RankCommand(os.getpid(), 0.0, "FAILED", "ValueError")
    assert first.list_other_ends() == [failed, killed]
    _folder(1, ranks=3)
    assert _folder(0, ranks=3).list_other_ends() == []
    # A process of another container cannot be seen, whether it lives or not.
    monkeypatch.setattr(spool_folder, "machine_id", lambda: "another")
    assert first.list_other_ends() == [failed]
    first.remove()
    assert first.path is not None
    assert not first.path.exists()


def test_a_rank_that_ended_before_the_sampling_one_began_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its CPU time and memory are in no figure; a wrapped command tells of its whole CPU time."""
    other = _folder(1)
    first = _folder(0)
    assert first.begin_sampling(is_command=False) == (None, None)
    assert caplog.messages == []
    other.leave("FINISHED")
    assert first.begin_sampling(is_command=True) == (first.commands, None)
    assert caplog.messages == []
    for _ in range(2):  # of a loop of blocks
        first.begin_sampling(is_command=False)
    assert [m.partition(" before")[0] for m in caplog.messages] == ["1 rank of this node had ended"]


def test_a_rank_that_is_a_block_ahead_is_not_told_that_it_is_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first rank sends the report of its block, and takes in what this one leaves."""
    first, second = _folder(0), _folder(1)
    second.leave("FINISHED")
    ahead = _folder(1)
    ahead.leave("FINISHED")
    assert caplog.messages == []
    first.leave("FINISHED")
    first.remove()
    assert _folder(0).path == ahead.path


def test_a_rank_that_comes_after_the_report_was_made_is_told(
    waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """It began and ended while the first rank was sending: nobody else would say so."""
    first = _folder(0)
    first.wait_for_others(0.0)
    _folder(1).leave()
    first.remove()
    (record,) = caplog.records
    assert "1 rank of this node began when the first one had ended" in record.getMessage()


def test_a_rank_after_the_first_one_is_told_so(waits: list[float]) -> None:
    """The first rank has removed the folder: that no file is there is not the reason."""
    first, second = _folder(0), _folder(1)
    first.remove()
    assert second.commands is not None
    with pytest.raises(RankGoneError):
        second.commands.note(RankCommand(1))


def _die(*ranks: int) -> Path:
    """Let these ranks begin to record in processes of their own, and be killed; return where."""
    for rank in ranks:
        pid = os.fork()
        if pid == 0:
            try:
                _folder(rank)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    (base,) = Path(tempfile.gettempdir()).glob("mlflow-perf-*")
    return base


def test_what_a_killed_first_rank_left_is_removed() -> None:
    """By recovery, and by the first rank of a later job; not while a rank still records there."""
    base = _die(0, 1)
    left = {*base.iterdir()}
    assert len(left) == 2  # the folder, and the turn
    node = Node(0, 1, 0, 0, 2, "h", "mpich", local_size=2)
    first = SpoolFolder(node, "later", parent=Path("unused"))
    assert first.path is not None
    assert {*base.iterdir()} == {first.path, first.path.with_suffix(".turn")}
    remove_dead_ranks()
    assert first.path.exists()
    first.leave()
    first.remove()
    first.forget()
    assert [*base.iterdir()] == []


def test_what_a_killed_first_rank_left_stays_while_another_rank_records() -> None:
    """That one ends by itself, and looks for the first rank's file then."""
    base = _die(0)
    second = _folder(1)
    remove_dead_ranks()
    assert second.path is not None
    assert (second.path / "0.sampler").exists()
    second.leave()
    remove_dead_ranks()
    assert [*base.iterdir()] == []


def test_a_folder_without_a_first_rank_is_kept_for_a_month() -> None:
    """It may come late, and would miss the rank that has come and died."""
    base = _die(1)
    remove_dead_ranks()
    (folder,) = base.iterdir()
    then = time.time() - 31 * 24 * 3600
    os.utime(folder, (then, then))
    remove_dead_ranks()
    assert [*base.iterdir()] == []


def test_what_lives_on_another_machine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes may share a folder for temporary files, and their processes' ids mean nothing here."""
    base = _die(0, 1)
    left = {*base.iterdir()}
    monkeypatch.setattr(rank_turn, "machine_id", lambda: "another")
    remove_dead_ranks()
    assert {*base.iterdir()} == left
