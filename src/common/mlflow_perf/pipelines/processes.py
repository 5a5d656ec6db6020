"""The processes of a step: started together, watched, stopped together. Imports `launch`."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.pipelines.launch import Rank

__all__ = ["Ended", "Limits", "run_ranks"]

_POLL_SEC = 0.02
_GRACE_SEC = 10.0
_LAST_LINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop processes that have not ended.

    Attributes:
        timeout_sec: After this time.
        stop: When this file appears; it works across machines.
    """

    timeout_sec: float | None
    stop: Path


@dataclass(frozen=True, slots=True)
class Ended:
    """How the processes of a step ended.

    Attributes:
        code: Exit code of the first one that failed, negative for a signal; 0 if none did.
        who: The one that failed, as a subject for a sentence.
        last_line: Last line of its log.
        timed_out: Whether they were stopped for taking too long.
        stopped: Whether they were stopped because the pipeline was.
        cpu_sec: CPU time, children that were waited for included.
        max_rss_mb: Largest resident memory of one process, in MB.
    """

    code: int
    who: str = "the command"
    last_line: str = ""
    timed_out: bool = False
    stopped: bool = False
    cpu_sec: float = 0.0
    max_rss_mb: float = 0.0


@dataclass
class _Child:
    rank: Rank
    log: Path
    process: subprocess.Popen[bytes]
    code: int | None = None
    cpu_sec: float = 0.0
    max_rss_mb: float = 0.0

    def poll(self) -> bool:
        """Whether it has ended; takes its resources when it has."""
        if self.code is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.code = self.process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_sec = usage.ru_utime + usage.ru_stime
                self.max_rss_mb = _own_peak_mb(usage.ru_maxrss)
        return self.code is not None

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it started."""
        if not self.poll():
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return


@dataclass
class _Group:
    children: list[_Child] = field(default_factory=list)

    def running(self) -> list[_Child]:
        return [child for child in self.children if not child.poll()]

    def failed(self) -> _Child | None:
        return next((c for c in self.children if c.poll() and c.code != 0), None)

    def stop(self) -> None:
        """Ask all to end, and after a grace in which they may log, make them."""
        for number, grace in ((signal.SIGTERM, _GRACE_SEC), (signal.SIGKILL, _GRACE_SEC)):
            for child in self.children:
                child.signal(number)
            end = time.monotonic() + grace
            while self.running() and time.monotonic() < end:
                time.sleep(_POLL_SEC)


def run_ranks(
    ranks: list[Rank], *, folder: Path, logs: Path, environ: Mapping[str, str], limits: Limits
) -> Ended:
    """Run the processes until all have ended, one has failed, or a limit is reached.

    Args:
        ranks: What to start.
        folder: Folder to run in.
        logs: Folder of the log files.
        environ: Environment; each rank adds its own.
        limits: When to stop them.
    """
    group = _Group()
    timed_out = stopped = False
    end = time.monotonic() + limits.timeout_sec if limits.timeout_sec else None
    try:
        for rank in ranks:
            group.children.append(_start(rank, folder, logs / rank.log, environ))
        while group.running() and not group.failed():
            stopped = limits.stop.exists()
            timed_out = end is not None and time.monotonic() > end
            if stopped or timed_out:
                break
            time.sleep(_POLL_SEC)
        first = group.failed()
    finally:
        group.stop()
    return _ended(group, first, timed_out=timed_out, stopped=stopped)


def _start(rank: Rank, folder: Path, log: Path, environ: Mapping[str, str]) -> _Child:
    # A session of its own, so that a Ctrl-C in the terminal does not reach it before the runner.
    with log.open("wb") as file:
        process = subprocess.Popen(
            rank.command,
            cwd=folder,
            env={**environ, **rank.environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _Child(rank, log, process)


def _ended(group: _Group, first: _Child | None, *, timed_out: bool, stopped: bool) -> Ended:
    worst = first or group.failed()
    code = (worst.code or 0) if worst else 0
    one = len(group.children) == 1
    return Ended(
        code=code or (1 if timed_out else 0),
        who="the command" if one or worst is None else worst.log.stem.replace("-", " "),
        last_line=_last_line(worst.log) if worst else "",
        timed_out=timed_out,
        stopped=stopped,
        cpu_sec=sum(c.cpu_sec for c in group.children),
        max_rss_mb=max((c.max_rss_mb for c in group.children), default=0.0),
    )


def _own_peak_mb(peak_kb: int) -> float:
    """Return a child's peak in MB; 0 where it is only what the fork copied from this process."""
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_kb / 1024 if peak_kb > ours else 0.0


def _last_line(log: Path) -> str:
    """Return the last line of a log that says something."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_LINE_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
