"""Start the processes of a step together, watch them, and stop them together.

If this process is killed, a guard stops them.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mlflow_perf.core.clock import pause
from mlflow_perf.core.uris import redact_text
from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import (
    RUNNER_KILLED,
    STARTED_COMMAND,
    STOP_NOTE_VARIABLE,
    UNSTARTED,
    write_stop_note,
)
from mlflow_perf.pipelines.guard import END_BYTES, Guard
from mlflow_perf.pipelines.launch import Rank
from mlflow_perf.pipelines.runner_process import RunnerProcess, RunnerWatch

_POLL_SEC = 0.02
_GRACE_SEC = 10.0
_LAUNCHED_SEC = 10.0
_CLOSING_LINE = re.compile(r"mlflow-perf: .* \| run \w+ \| ")  # of a report: no reason


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop processes that have not ended.

    Attributes:
        timeout_sec: Stop them after this time.
        stop: Stop them when this file appears; it works across machines. See `write_stop`.
        note: File in which their reports find that they took too long; None for none.
        own_stop: The same as `stop`, for this step alone; None for none.
        followed: File in which the command's wrapper tells when it began and ended: what
            mlflow-perf takes before and after does not count. None where there is none.
        ours_sec: The most that it takes before, and after.
        runner: The pipeline's runner: stop all its steps when it is gone; None to let them be.
    """

    timeout_sec: float | None
    stop: Path
    note: Path | None = None
    own_stop: Path | None = None
    followed: Path | None = None
    ours_sec: float = 0.0
    runner: RunnerProcess | None = None

    def find_stop(self) -> End | None:
        """Return how the step ends, and why, if it is to be stopped; None if not."""
        for path in (self.stop, self.own_stop):
            with suppress(OSError):
                if path is not None:
                    status, _, why = path.read_text(encoding="utf-8").partition(" ")
                    return End(status, why) if why else End("KILLED", "stopped")
        return None

    def has_finished(self) -> bool:
        """Return whether the command ended well by itself: only its report is on the way."""
        with suppress(OSError):
            return self.followed is not None and self.followed.read_text("utf-8") == "FINISHED"
        return False

    def describe_timeout(self) -> str:
        """Return why processes were stopped that took too long."""
        return f"took longer than its limit of {self.timeout_sec:g} s"


class _Clock:
    """Says when processes have taken too long.

    Args:
        limits: Their limits.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._begun = limits, time.monotonic()
        self._ours_until = self._begun + limits.ours_sec
        self._said = UNSTARTED if limits.followed else ""

    def is_over(self) -> bool:
        """Return whether they have to be stopped now."""
        limit_sec, now = self._limits.timeout_sec, time.monotonic()
        if not limit_sec:
            return False
        if self._limits.followed is None:  # a launcher starts the command, and mlflow-perf with it
            return now > self._begun + limit_sec + _LAUNCHED_SEC
        with suppress(OSError):
            said = self._limits.followed.read_text(encoding="utf-8")
            if said and said != self._said:
                if said == STARTED_COMMAND:
                    self._begun = now
                self._said, self._ours_until = said, now + self._limits.ours_sec
        if self._said != STARTED_COMMAND and now < self._ours_until:
            return False
        return now > self._begun + limit_sec


@dataclass(frozen=True, slots=True)
class Ended:
    """How the processes of a step ended.

    Attributes:
        code: Exit code of the first process that failed, negative for a signal; 0 if none did.
        who: The failed process, as the subject of a sentence.
        last_line: Last line of its log.
        timed_out: Whether they were stopped because they took too long.
        stop: How the step ends if it was stopped, and why; None if it was not.
    """

    code: int
    who: str = "the command"
    last_line: str = ""
    timed_out: bool = False
    stop: End | None = None

    @property
    def by_itself(self) -> End | None:
        """How MLflow is to have their end, and why; None where a signal or the runner ended one."""
        if self.stop or self.timed_out or self.code < 0:
            return None
        return End("FAILED", f"exit code {self.code}") if self.code else End("FINISHED")

    def describe(self, limits: Limits) -> str:
        """Return why the processes did not finish; empty if they did."""
        if self.stop:
            return self.stop.cause
        if self.timed_out:
            return limits.describe_timeout()
        if self.code == 0:
            return ""
        last = f": {self.last_line}" if self.last_line else ""
        # A shell that ran the killed program tells of signal n as 128 + n.
        number = -self.code if self.code < 0 else self.code - 128
        by = f"signal {number}" if 0 < number < 65 else f"exit code {self.code}"
        return f"{self.who} ended with {by}{last}"


def write_stop(path: Path, end: End) -> None:
    """Write the file that stops steps: empty for a pipeline that was stopped, else with the end.

    Args:
        path: The file.
        end: How the steps end, and why.
    """
    new = path.with_suffix(".new")
    with suppress(OSError):  # a full disk: then it is empty
        new.write_text(f"{end.status} {end.cause}", encoding="utf-8")
        new.replace(path)
    with suppress(OSError):
        path.touch()


@dataclass
class _Child:
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    @property
    def who(self) -> str:
        """One of several processes, as the subject of a sentence."""
        return self.log.stem.replace("-", " ")


class _Group:
    """The processes of a step, and the guard that writes their logs.

    Args:
        logs: Their log files.
        note: The file that is named to these processes alone; None for none.
    """

    def __init__(self, logs: Sequence[Path], note: Path | None) -> None:
        self.children: list[_Child] = []
        mark = "" if note is None else f"{STOP_NOTE_VARIABLE}={note}"
        self.guard = Guard(logs, _GRACE_SEC, mark)

    def start(self, rank: Rank, log: Path, folder: Path, environ: Mapping[str, str]) -> None:
        environ = {**environ, **rank.environment}
        process = self.guard.start_process(rank.command, log=log, folder=folder, environ=environ)
        self.children.append(_Child(log, process))

    def running(self) -> list[_Child]:
        return [child for child in self.children if child.code is None]

    def failed(self) -> _Child | None:
        return next((child for child in self.children if child.code), None)

    def wait(self, most_sec: float) -> None:
        """Wait until they have ended by themselves, or the time is over."""
        until = time.monotonic() + most_sec
        while self.running() and time.monotonic() < until:
            self.guard.keep()
            pause(_POLL_SEC)

    def end(self) -> None:
        """End all that they have started if one of them still runs, and complete the logs."""
        if self.running():
            self.guard.stop()
        else:
            self.guard.end()


def _find_last_line(end: bytes) -> str:
    """Return the last line of a log that is not blank, and not the verdict of a report.

    Args:
        end: The end of the log.
    """
    lines = end.decode("utf-8", "replace").splitlines()
    if lines and len(end) == END_BYTES:  # the first one may begin in the middle of a password
        lines[0] = lines[0].partition(" ")[2]
    told = (line.strip() for line in reversed(lines) if not _CLOSING_LINE.match(line))
    return next((redact_text(line)[:300] for line in told if line), "")


def run_ranks(
    ranks: Sequence[Rank], *, folder: Path, logs: Path, environ: Mapping[str, str], limits: Limits
) -> Ended:
    """Run the processes until all have ended, one has failed, or a limit is reached.

    Args:
        ranks: The processes to start.
        folder: Folder to run in.
        logs: Folder of the log files.
        environ: Environment; each rank adds its own variables.
        limits: When to stop them.
    """
    group = _Group([logs / rank.log for rank in ranks], limits.note)
    timed_out, stop, has_finished = False, None, False
    clock, watch = _Clock(limits), RunnerWatch(limits.runner)
    try:
        for rank in ranks:
            group.start(rank, logs / rank.log, folder, environ)
        while group.running() and not group.failed():
            if watch.is_gone():  # whose guard would have ended the steps that it started itself
                write_stop(limits.stop, End("KILLED", RUNNER_KILLED))
            stop = limits.find_stop()
            timed_out = clock.is_over()
            if stop or timed_out:
                if has_finished := limits.has_finished():
                    break
                status, why = stop or End("FAILED", limits.describe_timeout())
                if limits.note is not None:
                    why = "its pipeline was stopped" if status == "KILLED" else why
                    write_stop_note(limits.note, status, why)
                    if ranks[0].heeds_stop:
                        group.wait(_GRACE_SEC)
                break
            group.guard.keep()
            pause(_POLL_SEC)
        failed = group.failed()
        if failed and len(ranks) > 1 and not (stop or timed_out):
            _note_failure(failed, limits)
    finally:
        group.end()
    if has_finished:
        return Ended(0)
    failed = failed or group.failed()
    return Ended(
        code=(failed.code if failed else 0) or (1 if timed_out else 0),
        who=failed.who if failed and len(ranks) > 1 else "the command",
        last_line=_find_last_line(group.guard.ends[failed.log]) if failed else "",
        timed_out=timed_out,
        stop=stop,
    )


def _note_failure(failed: _Child, limits: Limits) -> None:
    """Note which rank has failed: those that are ended with it would blame the signal."""
    if limits.note is not None:
        ended = Ended(failed.code or 0, failed.who)
        write_stop_note(limits.note, "KILLED", ended.describe(limits))
