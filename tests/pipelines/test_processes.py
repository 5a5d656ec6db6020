"""The processes of a step: started together, watched, stopped together."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import STOP_NOTE_VARIABLE, read_stop_note
from mlflow_perf.pipelines import processes
from mlflow_perf.pipelines.launch import Rank
from mlflow_perf.pipelines.processes import Ended, Limits, run_ranks, write_stop
from mlflow_perf.pipelines.runner_process import RunnerProcess
from mlflow_perf.session.closing_line import describe_run
from mlflow_perf.tracking.run_handle import RunHandle


def _run(folder: Path, *commands: str, timeout: float | None = None) -> Ended:
    ranks = [
        Rank(("bash", "-c", text), {"RANK": str(i)}, f"rank-{i}.txt")
        for i, text in enumerate(commands)
    ]
    note = folder / "note"
    environ = {"PATH": os.environ["PATH"], STOP_NOTE_VARIABLE: str(note)}
    limits = Limits(timeout, folder / "stop", note)
    return run_ranks(ranks, folder=folder, logs=folder, environ=environ, limits=limits)


def test_processes_that_finish_have_no_message(tmp_path: Path) -> None:
    """Each has its own variables and its own log."""
    ended = _run(tmp_path, "echo $RANK", "echo $RANK")
    assert (ended.code, ended.describe(Limits(None, tmp_path))) == (0, "")
    assert [(tmp_path / f"rank-{i}.txt").read_text() for i in (0, 1)] == ["0\n", "1\n"]
    assert ended.by_itself == ("FINISHED", "")


def test_the_first_failure_ends_the_others(tmp_path: Path) -> None:
    """A process that would sleep for a minute is ended, and the failed one is named."""
    ended = _run(tmp_path, "exec sleep 60", "echo why; echo; exit 5")
    assert (ended.code, ended.who, ended.last_line) == (5, "rank 1", "why")
    assert ended.describe(Limits(None, tmp_path)) == "rank 1 ended with exit code 5: why"
    assert ended.by_itself == ("FAILED", "exit code 5")


def test_a_launcher_whose_tasks_end_themselves_is_not_ended_before(tmp_path: Path) -> None:
    """They read the note on their nodes; their launcher ends when they have ended."""
    note = tmp_path / "note"
    script = f"trap 'echo killed; exit 1' TERM; until test -e {note}; do sleep 0.05; done; echo end"
    rank = Rank(("bash", "-c", script), {}, "log", heeds_stop=True)
    limits = Limits(1.0, tmp_path / "stop", note)
    environ = {"PATH": os.environ["PATH"]}
    ended = run_ranks([rank], folder=tmp_path, logs=tmp_path, environ=environ, limits=limits)
    assert (ended.timed_out, (tmp_path / "log").read_text()) == (True, "end\n")


@pytest.mark.parametrize(("said", "last"), [("it broke", "it broke"), ("", "")])
def test_the_verdict_of_a_report_is_no_reason(tmp_path: Path, said: str, last: str) -> None:
    """A script that reports itself ends its log with that line."""
    closing = describe_run(RunHandle(run_id="0a1b"), NodeDocument(component="fit", status="FAILED"))
    ended = _run(tmp_path, f"echo '{said}'; echo '{closing}'; exit 3")
    assert ended.last_line == last


@pytest.mark.parametrize(
    ("script", "last"),
    [
        ("echo 'yyy password=hunter4pw'", "yyy password=***"),
        ("echo 'Authorization: Bearer hunter4pw'", "Authorization: Bearer ***"),
        # The middle of an address is at the beginning of what is read.
        ("printf 'http://bob:hunter4pw@host/ %065519d' 1", 65_519 * "0"),
        ("echo why; rm rank-0.txt; mkfifo rank-0.txt", "why"),
    ],
)
def test_the_last_line_has_no_secret_and_is_of_the_log_itself(
    tmp_path: Path, script: str, last: str
) -> None:
    """What a step puts in the place of its log is not read: a named pipe would never end."""
    assert _run(tmp_path, f"{script}; exit 3").last_line == last[:300]


def test_what_is_written_to_the_log_by_its_name_is_kept(tmp_path: Path) -> None:
    """`/dev/stderr` by its name is the same pipe: nothing is written over anything else."""
    _run(tmp_path, "echo one; echo two > /dev/stderr; echo three")
    assert (tmp_path / "rank-0.txt").read_text() == "one\ntwo\nthree\n"


def test_those_that_are_ended_with_a_failed_rank_know_which_one(tmp_path: Path) -> None:
    """Their reports would blame the signal that ended them."""
    note = tmp_path / "stopped-1"
    ranks = [
        Rank(("bash", "-c", text), {}, f"rank-{i}.txt")
        for i, text in enumerate(("exec sleep 60", "kill -9 $$"))
    ]
    limits = Limits(None, tmp_path / "stop", note=note)
    environ = {"PATH": os.environ["PATH"]}
    ended = run_ranks(ranks, folder=tmp_path, logs=tmp_path, environ=environ, limits=limits)
    assert ended.describe(limits) == "rank 1 ended with signal 9"
    assert read_stop_note(str(note)) == ("KILLED", "rank 1 ended with signal 9")


def test_a_signal_is_a_negative_code(tmp_path: Path) -> None:
    """The message names the signal."""
    ended = _run(tmp_path, "kill -9 $$")
    assert ended.code == -signal.SIGKILL
    assert ended.by_itself is None
    assert ended.describe(Limits(None, tmp_path)) == "the command ended with signal 9"


def test_limits_stop_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit and the stop file are different outcomes."""
    monkeypatch.setattr(processes, "_LAUNCHED_SEC", 0.0)
    late = _run(tmp_path, "exec sleep 60", timeout=0.1)
    assert (late.code != 0, late.timed_out, late.stop) == (True, True, None)
    assert late.describe(Limits(0.1, tmp_path)) == "took longer than its limit of 0.1 s"
    stopped = _run(tmp_path, f"touch {tmp_path}/stop; exec sleep 60")
    assert (stopped.timed_out, stopped.stop) == (False, End("KILLED", "stopped"))
    assert stopped.describe(Limits(None, tmp_path)) == "stopped"


def test_steps_whose_runner_is_gone_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, on any machine: the worker that sees it first tells the others."""
    monkeypatch.setattr(RunnerProcess, "is_gone", lambda _: True)
    runner = RunnerProcess(os.getppid(), 0.0, "here")
    ended = run_ranks(
        [Rank(("sleep", "60"), {}, "log.txt")],
        folder=tmp_path,
        logs=tmp_path,
        environ={"PATH": os.environ["PATH"]},
        limits=Limits(None, tmp_path / "stop", runner=runner),
    )
    killed = End("KILLED", "the runner of its pipeline was killed")
    assert ended.stop == killed
    assert Limits(None, tmp_path / "stop").find_stop() == killed


@pytest.mark.parametrize(
    ("notes", "is_over"),
    [
        ("sleep 2.2; printf STARTED > ended; printf FINISHED > ended; sleep 2.2", False),
        ("printf STARTED > ended; sleep 60", True),
        ("sleep 60", True),  # what should tell of the command never does
    ],
)
def test_what_mlflow_perf_takes_itself_is_within_no_limit(
    tmp_path: Path, notes: str, is_over: bool
) -> None:
    """The limit is that of the command, from its begin to its end, as its wrapper tells."""
    (tmp_path / "ended").write_text("RUNNING")
    ours_sec = 0.5 if is_over else 20.0
    limits = Limits(2.0, tmp_path / "stop", followed=tmp_path / "ended", ours_sec=ours_sec)
    rank = Rank(("bash", "-c", notes), {}, "std_log.txt")
    ended = run_ranks([rank], folder=tmp_path, logs=tmp_path, environ=os.environ, limits=limits)
    assert ended.timed_out is is_over


@pytest.mark.parametrize(
    ("notes", "code", "has_note"),
    [("printf FINISHED > ended", 0, False), ("printf STARTED > ended", -15, True)],
)
def test_a_stop_while_only_the_report_is_on_the_way(
    tmp_path: Path, notes: str, code: int, has_note: bool
) -> None:
    """The command ended well before the pipeline was stopped: so did the step."""
    limits = Limits(None, tmp_path / "stop", tmp_path / "note", followed=tmp_path / "ended")
    command = f"{notes}; touch stop; exec sleep 60"
    rank = Rank(("bash", "-c", command), {}, "std_log.txt")
    ended = run_ranks([rank], folder=tmp_path, logs=tmp_path, environ=os.environ, limits=limits)
    assert (ended.code, ended.stop is not None) == (code, has_note)
    assert (tmp_path / "note").exists() == has_note
    assert ended.by_itself == (None if has_note else End("FINISHED"))


def test_a_step_that_was_given_up_ends_as_its_runner_says(tmp_path: Path) -> None:
    """Its worker seemed lost: what is left of it stops, and has the runner's reason."""
    lost = End("FAILED", "its worker was lost: it was killed")
    write_stop(tmp_path / "own", lost)
    limits = Limits(None, tmp_path / "stop", tmp_path / "stopped-1", tmp_path / "own")
    rank = Rank(("bash", "-c", "exec sleep 60"), {}, "std_log.txt")
    ended = run_ranks([rank], folder=tmp_path, logs=tmp_path, environ=os.environ, limits=limits)
    assert (ended.stop, ended.describe(limits)) == (lost, lost.cause)
    assert (tmp_path / "stopped-1").read_text() == f"FAILED {lost.cause}"
    write_stop(tmp_path / "no folder" / "own", lost)  # is no error of the pipeline


@pytest.mark.parametrize("start", ["", "setsid", "setsid --fork"])
def test_what_a_stopped_process_started_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """It may ignore SIGTERM while its parent does not, have its own session, and no parent."""
    monkeypatch.setattr(processes, "_GRACE_SEC", 1.0)
    for name, first in {"stubborn": "trap '' TERM", "usual": ":"}.items():
        (tmp_path / name).write_text(f"{first}\necho $$ >{tmp_path}/{name}.pid\nexec sleep 60\n")
    started = " && ".join(f"[ -s {name}.pid ]" for name in ("stubborn", "usual"))
    ended = _run(
        tmp_path,
        f"{start} bash stubborn & {start} bash usual & "
        f"until {started}; do sleep 0.05; done; touch stop; exec sleep 60",
    )
    assert ended.stop
    for name in ("stubborn", "usual"):
        pid, until = int((tmp_path / f"{name}.pid").read_text()), time.monotonic() + 30
        while _runs(pid) and time.monotonic() < until:  # SIGKILL takes effect when it gets a CPU
            time.sleep(0.02)
        assert not _runs(pid)


def _runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
