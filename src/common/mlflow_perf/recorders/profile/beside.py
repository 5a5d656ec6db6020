"""Runs a program beside the job that reads the stacks of its processes from their memory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from mlflow_perf.core.own_cost import add_own_cpu
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.temporary import find_temporary_folder
from mlflow_perf.core.thread_list import list_threads
from mlflow_perf.core.threads import Thread
from mlflow_perf.core.tokens import make_folder
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.samples import RawStacks
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.collect import collect_stacks

_log = get_logger(__name__)

_LONGEST_END_SEC = 10.0
_DEFAULT_HZ = 50.0

# The program ends with a SIGINT, which a shell in the background of another one never gets. Where
# the job was killed, nobody else removes the folder.
_BEGIN = """
trap 'over=1' INT
echo $$
exec </dev/null >/dev/null 2>&1
folder=$1 name=$2 job=$3
shift 3
{
"""
_END = """
} >"$folder/$name.log" 2>&1
times >"$folder/$name.times"
kill -0 "$job" || rm -rf "$folder"
"""


class Beside:
    """Programs that this process has started, but that are not among its children.

    A job may wait for all of its children, and must not find these programs among them. Signals
    that this process blocks reach them all the same, and those of the terminal do not.

    Attributes:
        folder: What they may write to; it is gone after `close`.
    """

    def __init__(self) -> None:
        self.folder = Path(make_folder(prefix="mlflow-perf-beside-", dir=find_temporary_folder()))
        self._pids: list[int] = []

    def start(self, name: str, script: str, *arguments: str) -> None:
        """Run a shell script with the variables `$folder` and `$job`, and `$over` once it must end.

        Args:
            name: Name of its files: its output is in `name.log`.
            script: The script.
            arguments: Its arguments.

        Raises:
            OSError: When it cannot be started.
            ValueError: Likewise.
        """
        script = f"{_BEGIN}{script}{_END}"
        command = ["sh", "-c", script, "sh", str(self.folder), name, str(os.getpid()), *arguments]
        # Without what tells the job's own processes.
        environ = {k: v for k, v in os.environ.items() if k != spool.VARIABLE}
        reader, writer = os.pipe()
        with os.fdopen(reader, encoding="ascii") as output:
            try:
                outer = os.posix_spawn(
                    "/bin/sh",
                    ["sh", "-c", '"$@"; :', "sh", *command],
                    environ,
                    file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)],
                    setpgroup=0,
                    setsigmask=(),
                    setsigdef=(signal.SIGINT,),
                )
            finally:
                os.close(writer)
            self._pids.append(int(output.readline()))
        with contextlib.suppress(ChildProcessError, ProcessLookupError):  # the job waited for it
            os.kill(outer, signal.SIGKILL)
            os.waitpid(outer, 0)

    def list_running(self) -> Iterator[int]:
        """Yield the programs that still run; a PID may have been reused by another program."""
        for pid in self._pids:
            with contextlib.suppress(OSError):
                if str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    yield pid

    def stop(self) -> None:
        """End the programs within ten seconds."""
        self._send(signal.SIGINT)
        deadline = time.monotonic() + _LONGEST_END_SEC
        while any(self.list_running()) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for pid in self.list_running():
            with contextlib.suppress(OSError):
                os.killpg(os.getpgid(pid), number)

    def explain(self, name: str, program: str) -> DocumentError:
        """Return why a program has written nothing, according to its output."""
        said = (self.folder / f"{name}.log").read_text("utf-8", "replace").strip().splitlines()
        causes = [one for one in said if re.search("denied|permi", one, re.IGNORECASE)] or said
        return DocumentError(
            f"{program} could not read the process "
            f"({causes[-1].strip()[:200] if causes else 'no message'}). It needs the right to "
            "trace it (CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0) and an interpreter with "
            "symbols; MLFLOW_PERF_PROFILE_ENGINE=own needs neither."
        )

    def close(self) -> None:
        """Remove the folder, and count the CPU time that the shells reported at their end."""
        said = "".join(path.read_text("ascii", "replace") for path in self.folder.glob("*.times"))
        spent = re.findall(r"(\d+)m([\d.]+)s", said)
        add_own_cpu(sum(60 * float(minutes) + float(seconds) for minutes, seconds in spent))
        shutil.rmtree(self.folder, ignore_errors=True)


class BesideEngine(ABC):
    """The base of the engines whose programs run beside the job.

    Args:
        rate_hz: Samples per second; None for the default.
    """

    def __init__(self, rate_hz: float | None) -> None:
        self._rate_hz = _DEFAULT_HZ if rate_hz is None else rate_hz
        self._is_command = False
        self._spool: Path | None = None
        self._beside: Beside | None = None
        self._ours: set[int | None] = set()
        self._found: list[RawStacks] = []

    def offer(self, folder: Path | None, *, is_command: bool) -> None:
        """Note where the samples go, and whether the job is a child of this process."""
        self._spool = folder
        self._is_command = is_command

    def note_begin(self) -> None:
        """Note which threads are ours; what came before is cut off when the profile is built."""
        own = (one for one in list_threads() if isinstance(one, Thread))
        self._ours |= {one.native_id for one in own}

    def begin(self) -> None:
        """Start the programs, out of reach of the job's terminal and its handling of children."""
        try:
            self._beside = Beside()
            self._start(self._beside)
        except (OSError, ValueError) as error:
            _log.warning("The job's stacks are not sampled: %s", error)

    def end(self) -> None:
        """Stop the programs, and read what they have written."""
        beside, self._beside = self._beside, None
        if beside is None:
            return
        ended = time.time()
        beside.stop()
        try:
            self._read(beside, ended)
        except (OSError, DocumentError) as error:
            _log.warning("The job's stacks are not in its profile: %s", error)
        beside.close()

    @abstractmethod
    def _start(self, beside: Beside) -> None:
        """Start the programs.

        Raises:
            OSError: When one cannot be started.
            ValueError: Likewise.
        """

    @abstractmethod
    def _read(self, beside: Beside, ended: float) -> None:
        """Keep the samples, or write them to the spool folder.

        Raises:
            DocumentError: When a program could not read the process, or has written something else.
            OSError: When a file cannot be read.
        """

    def tidy(self) -> None:  # noqa: B027 - another engine has something to tidy
        """Do nothing: the job's other processes leave nothing."""

    def note_end(self) -> None:
        """Note which threads are ours; what comes after is cut off when the profile is built."""
        self.note_begin()

    def collect(self) -> None:
        """Take over what was found for each rank of this node."""
        if self._spool is not None:
            self._found = collect_stacks(self._spool)

    def list_stacks(self) -> list[RawStacks]:
        """Return the stacks by wall time and by CPU time, after the end; empty before it."""
        return self._found
