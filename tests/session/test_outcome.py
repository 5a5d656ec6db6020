"""How a block ended, as its report says it."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from pathlib import Path

import click
import pytest

from mlflow_perf.node.step_notes import STOP_NOTE_VARIABLE
from mlflow_perf.recorders.rank_commands import RankCommand
from mlflow_perf.session.outcome import Outcome


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, Outcome()),
        (GeneratorExit(), Outcome()),
        (SystemExit(0), Outcome()),
        (SystemExit(None), Outcome()),
        (SystemExit(3), Outcome("FAILED", "SystemExit")),
        (ValueError("a secret"), Outcome("FAILED", "ValueError")),
        (KeyboardInterrupt(), Outcome("KILLED", "KeyboardInterrupt")),
        (click.exceptions.Exit(0), Outcome()),
        (click.exceptions.Exit(2), Outcome("FAILED", "Exit")),
    ],
)
def test_the_outcome_follows_from_the_exception(
    error: BaseException | None, expected: Outcome
) -> None:
    """The cause is the exception's name, never its message, which may contain anything."""
    assert Outcome.from_error(error) == expected


def _cancel(*, interrupt: bool) -> Outcome:
    """Return how a block in a coroutine ended that Ctrl-C, or another task, cancelled."""
    found: list[Outcome] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if interrupt:
                asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
            else:
                asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.sleep(30)
        except asyncio.CancelledError as error:
            found.append(Outcome.from_error(error))
            raise

    with pytest.raises(KeyboardInterrupt if interrupt else asyncio.CancelledError):
        asyncio.run(work())
    return found[0]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.run has no handler of its own")
def test_ctrl_c_in_a_coroutine_kills_the_block() -> None:
    """`asyncio.run` cancels its task, and raises `KeyboardInterrupt` only behind the block."""
    assert _cancel(interrupt=True) == Outcome("KILLED", "KeyboardInterrupt")


def test_a_coroutine_that_was_cancelled_has_failed() -> None:
    """By a time limit or another task; a handler of the job for SIGINT changes nothing."""
    assert _cancel(interrupt=False) == Outcome("FAILED", "CancelledError")
    before = signal.signal(signal.SIGINT, functools.partial(print, end=""))
    try:
        assert _cancel(interrupt=False) == Outcome("FAILED", "CancelledError")
    finally:
        signal.signal(signal.SIGINT, before)


class _Hostile(type):
    is_hostile = False  # libraries that other tests use look at every class of exceptions

    def __getattribute__(cls, name: str) -> object:
        if _Hostile.is_hostile:
            raise RuntimeError(name)
        return super().__getattribute__(name)


class _HostileError(Exception, metaclass=_Hostile):
    pass


class _HostileCode:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]  # it compares, so it has none


def test_the_jobs_exception_is_only_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No code of the exception's class or exit code runs, which could raise in its place."""
    monkeypatch.setattr(_Hostile, "is_hostile", True)
    assert Outcome.from_error(_HostileError()) == Outcome("FAILED", "_HostileError")
    assert Outcome.from_error(SystemExit(_HostileCode())) == Outcome("FAILED", "SystemExit")


def test_a_job_ended_as_the_worst_of_its_ranks() -> None:
    """The cause is that of the rank that failed; of two that ended alike, the own one stays."""
    fine, own = Outcome(elsewhere="srun"), Outcome("FAILED", "ValueError")
    others = [RankCommand(1, 0.0, "KILLED", "signal SIGTERM"), RankCommand(2, 0.0)]
    assert fine.worst_with(others) == Outcome("KILLED", "signal SIGTERM", "srun")
    failed = RankCommand(3, 0.0, "FAILED", "exit code 4")
    assert fine.worst_with([*others, failed]) == Outcome("FAILED", "exit code 4", "srun")
    assert own.worst_with([*others, failed]) == own
    assert fine.worst_with(others[1:]) == fine


def test_the_crash_of_a_rank_is_the_cause_where_the_launcher_ended_the_others() -> None:
    """All of them were killed by a signal, but one raised it itself."""
    ended = Outcome("KILLED", "signal SIGTERM", "srun")
    crashed = RankCommand(1, 0.0, "KILLED", "signal SIGSEGV")
    other = RankCommand(2, 0.0, "KILLED", "signal SIGABRT")
    assert ended.worst_with([crashed, other]) == Outcome("KILLED", "signal SIGSEGV", "srun")
    assert ended.worst_with([RankCommand(1, 0.0, "KILLED", "signal SIGKILL")]) == ended
    failed = Outcome("FAILED", "ValueError")
    assert failed.worst_with([crashed]) == failed


@pytest.mark.parametrize(
    ("outcome", "is_failure"),
    [
        (Outcome("FAILED", "exit code 3"), True),
        (Outcome("KILLED", "signal SIGSEGV"), True),
        (Outcome("KILLED", "signal SIGTERM"), False),
        (Outcome(), False),
    ],
)
def test_a_signal_from_outside_is_no_failure_of_the_job(outcome: Outcome, is_failure: bool) -> None:
    """All ranks get it; only a job's own fault is one of which the launcher must learn."""
    assert outcome.is_failure is is_failure


def test_the_runner_of_a_pipeline_says_why_it_ends_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that took too long failed for that reason; another signal or end is its own."""
    monkeypatch.setenv(STOP_NOTE_VARIABLE, str(tmp_path / "stopped-1"))
    killed = Outcome("KILLED", "signal SIGTERM")
    assert killed.explain({}) == killed
    (tmp_path / "stopped-1").write_text("FAILED took longer than its limit of 2 s", "utf-8")
    assert killed.explain({}) == Outcome("FAILED", "took longer than its limit of 2 s")
    assert Outcome("KILLED", "signal SIGINT").explain({}) == Outcome("KILLED", "signal SIGINT")
    assert Outcome().explain({}) == Outcome()
