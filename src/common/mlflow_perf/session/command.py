"""A command of any language, recorded from outside as a process tree of its own.

The command runs as if it were alone: its output, input, terminal and exit code are its own, and the
signals that this process gets are passed on to it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlflow_perf.core.own_cost import own_memory_bytes
from mlflow_perf.core.program_age import program_age_sec
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.settings import Settings
from mlflow_perf.core.uris import first_line
from mlflow_perf.integrations import startup
from mlflow_perf.node.exit_cause import count_new_oom_kills, name_signal, read_oom_counts
from mlflow_perf.readers.process.reaped import find_ended_child
from mlflow_perf.recorders.rank_commands import RankCommand, RankGoneError
from mlflow_perf.recorders.spool_folder import SpoolFolder
from mlflow_perf.records import MB
from mlflow_perf.session.command_runs import CommandRuns
from mlflow_perf.session.held_child import NOT_EXECUTABLE, NOT_FOUND, HeldChild, execute
from mlflow_perf.session.outcome import CRASHES, Outcome
from mlflow_perf.session.recording import Recording
from mlflow_perf.session.remote_tasks import RemoteTasks, explain_remote
from mlflow_perf.session.step_command import StepCommand
from mlflow_perf.tracking.reporting_notes import note_reporting

_log = get_logger(__name__)
_CAN_HOLD = all(hasattr(os, name) for name in ("fork", "waitid")) and hasattr(
    signal, "sigtimedwait"
)
_INTERPRETER = re.compile(
    r"(python|pypy|bash|sh|zsh|dash|ksh|fish|R|Rscript|julia|perl|ruby|node|torchrun)[\d.]*"
)
_STARTER = re.compile(
    r"env|timeout|nice|ionice|nohup|time|setsid|stdbuf|taskset|chrt|numactl|xvfb-run|srun|mpiexec|"
    r"mpirun"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_RUNS_MODULE = re.compile(r"-[bBdEiIOPqsSuvx]*m")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
_NUMBER = re.compile(r"[\d.,:-]+[smhd]?")  # a duration, a list of CPUs
_SCRIPT = re.compile(r"[\w./+@-]+\.(pyz?|sh|R|jl|pl|rb|js)")
# Options followed by code, in the same word or the next: `bash -lc`, `perl -e`, `node --eval`.
_TAKES_CODE = re.compile(r"-[A-Za-z]*[ceEp].*|--(eval|print|execute|command).*")
_ENDING = {"SIGHUP", "SIGINT", "SIGKILL", "SIGTERM"}
_LOOK_EVERY_SEC = 1.0
_UNSEEN_SEC = 3.0


def check_command(argv: Sequence[str]) -> int:
    """Return the exit code of a command that cannot be started; 0 if it probably can."""
    if shutil.which(argv[0]) is not None:
        return 0
    if os.sep not in argv[0]:
        return NOT_FOUND
    try:
        Path(argv[0]).stat()
    except (FileNotFoundError, NotADirectoryError):
        return NOT_FOUND
    # In a folder that may not be searched, or behind a loop of links.
    except OSError:
        pass
    return NOT_EXECUTABLE


def name_component(argv: Sequence[str]) -> str:
    """Return a name for a command: that of the script or module which it runs, else its own.

    Nothing else of the command's text is used, because it may hold passwords.
    """
    argv = _skip_starters(argv)
    if (at := _find_module(argv)) and argv[at] not in _LAUNCHERS:
        return argv[at]
    if at:
        argv = [argv[0], *argv[next((i for i, x in enumerate(argv) if _is_script(x)), at) :]]
    program = Path(argv[0]).stem or "command"
    script = next((word for word in argv[1:] if not word.startswith("-")), "")
    before = argv[1 : argv.index(script, 1)] if script else []
    is_known = bool(_INTERPRETER.fullmatch(Path(argv[0]).name)) or _is_script(script)
    if is_known and _SCRIPT.fullmatch(script) and not any(map(_TAKES_CODE.fullmatch, before)):
        return Path(script).stem
    return program


def _find_module(argv: Sequence[str]) -> int:
    """Return the place of the module that `python -m` runs; 0 without one."""
    words = iter(enumerate(argv))
    if not _PYTHON.fullmatch(Path(next(words)[1]).name):
        return 0
    for at, word in words:
        if _RUNS_MODULE.fullmatch(word) and _MODULE.fullmatch("".join(argv[at + 1 : at + 2])):
            return at + 1
        if not word.startswith("-") or _TAKES_CODE.fullmatch(word):
            return 0
        if word in ("-X", "-W"):  # the next word is its value
            next(words, None)
    return 0


def _skip_starters(argv: Sequence[str]) -> Sequence[str]:
    """Return a command without `env X=1`, `timeout 60` or `srun -n 4` before it."""
    is_sure = True  # false after a word that is a program or the value of an option
    for at, word in enumerate(argv):
        name, follows_option = Path(word).name, at > 0 and argv[at - 1].startswith("-")
        is_starter = _STARTER.fullmatch(name) and not follows_option
        if at == 0 and not is_starter:
            break
        if _ASSIGNMENT.fullmatch(word):
            continue
        if _INTERPRETER.fullmatch(name) or _is_script(word):
            return argv[at:]
        if is_starter or word.startswith("-") or _NUMBER.fullmatch(word):
            continue
        if not follows_option:
            return argv[at:] if is_sure else argv
        is_sure = False
    return argv


def _is_script(word: str) -> bool:
    """Return whether a word is a script that can be seen; a text of any length is none."""
    # `Path.is_file` raises where the word is too long, or in a folder that may not be entered.
    return bool(_SCRIPT.fullmatch(word)) and os.path.isfile(word)  # noqa: PTH113


def judge_end(code: int, *, ended_by: int, received: Sequence[int], oom_kills: int) -> Outcome:
    """Return how a command ended.

    Args:
        code: Its exit code; 128 + n for signal n.
        ended_by: The signal that ended it; 0 for none.
        received: The signals that this process got meanwhile.
        oom_kills: How many processes the OOM killer ended in its cgroup.
    """
    # A shell between us and the process that was killed reports it as 128 + n.
    number = ended_by or (code - 128 if 128 < code < 192 else 0)
    name = name_signal(number) if number else ""
    if oom_kills and (number == getattr(signal, "SIGKILL", 9) or code != 0):
        cause = "out of memory: the kernel's OOM killer ended a process of the command (SIGKILL)"
        return Outcome("KILLED" if number else "FAILED", cause)
    asked = [name_signal(n) for n in received if name_signal(n) in _ENDING]
    if code == 0:  # servers reload at SIGHUP, and handle Ctrl-C; SIGTERM ends what ends well, too
        asked = [one for one in asked if one == "SIGTERM"]
    if asked:
        return Outcome("KILLED", f"signal {name if name in asked else asked[0]}")
    # A shell's exit code of 128 + n means one of these; any other may be a program's own.
    if ended_by or name in _ENDING | CRASHES:
        return Outcome("KILLED", f"signal {name.removeprefix('signal ')}")  # a real-time signal
    return Outcome("FAILED", f"exit code {code}") if code else Outcome()


def run_command(
    argv: Sequence[str],
    name: str,
    settings: Settings,
    *,
    hold: bool = False,
    own_run: bool = False,
    step: StepCommand | None = None,
) -> int:
    """Run a command to its end, report it, and return its exit code, -n for signal n.

    Where it cannot be started as a child, it replaces this process and is not reported.

    Args:
        argv: The command and its arguments.
        name: The component.
        settings: The settings.
        hold: Whether to leave the report in the journal, for another program to send.
        own_run: Whether to report to a run of its own, even if the command starts one.
        step: Tells the runner of a pipeline of the command, if that is a step of it.

    Raises:
        MlflowPerfError: When a setting cannot be used; the command is not started then.
    """
    recording = Recording(name, settings, is_command=True, hold=hold)
    try:
        _try_step(recording.gather)
        with startup.lend_to(argv):
            child: HeldChild | _PlainChild = HeldChild(argv) if _CAN_HOLD else _PlainChild(argv)
    except OSError as error:
        _log.warning("The command runs without a report: no process can be started (%s).", error)
        recording.abandon()
        execute(argv)
    except KeyboardInterrupt:  # before there is a command that could get it
        recording.abandon()
        raise
    may_join = not (own_run or hold or settings.live)
    runs = CommandRuns(recording, recording.spool_path, may_join=may_join)
    code, end = _follow(child, recording, RemoteTasks(argv, child.pid), runs, step)
    with contextlib.suppress(KeyboardInterrupt):  # the report is kept, and a message has said so
        child.allow_interrupt()
        _try_step(lambda: _finish(recording, runs, end))
    age_sec = program_age_sec()
    _try_step(lambda: note_reporting(recording.run, recording.document, age_sec=age_sec))
    return code


def _finish(recording: Recording, runs: CommandRuns, end: Outcome) -> None:
    """Send the report to the command's run, or to one of its own."""
    if runs.decide():
        recording.finish(end)
        runs.link(is_measured=end.elsewhere is None)
    else:
        recording.abandon()
    if recording.spool is not None:
        recording.spool.forget()


def _follow(
    child: HeldChild | _PlainChild,
    recording: Recording,
    tasks: RemoteTasks,
    runs: CommandRuns,
    step: StepCommand | None,
) -> tuple[int, Outcome]:
    """Record a command until it has ended; return its exit code, -n for signal n, and the outcome.

    Args:
        child: The command, which has not started yet.
        recording: What records it.
        tasks: What finds the tasks that it starts elsewhere.
        runs: What finds the MLflow runs that it starts.
        step: Tells the runner of a pipeline of the command; None for none.
    """
    counts = read_oom_counts()

    def look() -> None:
        for file, count in read_oom_counts(child.pid).items():
            counts.setdefault(file, count)
        if tasks.look():
            _log.warning("%s", explain_remote(str(tasks.launcher)))
        _try_step(runs.look)
        if step is not None:
            step.look()

    try:
        _try_step(lambda: recording.start(wait=False, root_pid=child.pid, postpone=runs.may_join))
    finally:
        if step is not None:
            step.note_begin()
        child.release()
    begun = RankCommand(child.pid, launcher_pid=os.getppid())
    _try_step(lambda: recording.note_command(begun))
    look()
    code, ended_by = child.wait(look)
    if child.unseen_sec > _UNSEEN_SEC:
        _log.warning(
            "The command ended while mlflow-perf itself was stopped or held up, for %.0f s: up to "
            "that much of the time in its report is not its own.", child.unseen_sec,
        )  # fmt: skip
    received = () if step is not None and step.lives_on else child.received
    end = judge_end(
        code, ended_by=ended_by, received=received, oom_kills=count_new_oom_kills(counts)
    )
    if step is not None:
        step.note_end(end)
    account = find_ended_child(child.pid)
    used_sec = 0.0 if account is None else account.cpu_sec
    own_mb = own_memory_bytes() / MB
    ended = RankCommand(child.pid, used_sec, end.status, end.cause, own_mb)
    _try_step(lambda: recording.note_command(ended))
    spool = recording.spool
    if code == 0 and spool is not None and spool.leads:
        _await_ranks(child, recording, spool)
    _try_step(recording.stop)
    child.reap()
    end = end.worst_with(spool.list_other_commands() if spool else [])
    return -ended_by or code, replace(end, elsewhere=tasks.launcher)


def _await_ranks(child: HeldChild | _PlainChild, recording: Recording, spool: SpoolFolder) -> None:
    """Sample on after the command's end until those of the node's other ranks have ended.

    The launcher waits for all ranks. After a failure it ends the others, once this one is gone.
    A wait for ranks that do not come is no time of the job's: nothing is sampled meanwhile.
    """
    came = spool.count_ranks()
    recording.pause()

    def is_busy() -> bool:
        nonlocal came
        before, came = came, spool.count_ranks()
        is_recording = came > before or spool.has_others()
        recording.pause(is_over=is_recording)
        return is_recording or spool.is_rank_missing()

    child.wait_while(is_busy)


def _try_step(step: Callable[[], object]) -> None:
    """Do one step of a recording; an error costs the report, not the command."""
    try:
        step()
    except RankGoneError:
        _log.warning("The command is not reported: the first rank of this node had ended before.")
    except Exception as error:  # noqa: BLE001 - no error of ours reaches the command
        _log.warning("The command is not reported: %s", first_line(error))
        _log.debug("Not reported:", exc_info=True)


class _PlainChild:
    """A command on a system where it cannot be held back: Windows and macOS.

    Args:
        argv: The command.

    Attributes:
        pid: Its process id.
        received: The signals that this process got.
        unseen_sec: As of `HeldChild`; here the system says when the command ended.
    """

    unseen_sec = 0.0

    def __init__(self, argv: Sequence[str]) -> None:
        self.received: list[int] = []
        self._process = subprocess.Popen(list(argv))
        self.pid = self._process.pid
        for name in ("TERM", "HUP", "USR1", "USR2"):
            if hasattr(signal, f"SIG{name}"):
                signal.signal(getattr(signal, f"SIG{name}"), self._forward)
        # The terminal sends SIGINT to both processes.
        signal.signal(signal.SIGINT, lambda number, _: self.received.append(number))

    def _forward(self, number: int, _: Any) -> None:
        self.received.append(number)
        self._process.send_signal(number)

    def release(self) -> None:
        """Do nothing, because the command runs already."""

    def wait_while(self, is_busy: Callable[[], bool]) -> None:
        """Do nothing, because no launcher of several ranks runs there."""

    def wait(self, look: Callable[[], object]) -> tuple[int, int]:
        """Return exit code and ending signal once the command has ended."""
        while True:
            try:
                code = self._process.wait(_LOOK_EVERY_SEC)
            except subprocess.TimeoutExpired:
                look()
            else:
                return (128 - code, -code) if code < 0 else (code, 0)

    def reap(self) -> None:
        """Do nothing, because `wait` has collected the exit status."""

    def allow_interrupt(self) -> None:
        """Let Ctrl-C end our own work."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
