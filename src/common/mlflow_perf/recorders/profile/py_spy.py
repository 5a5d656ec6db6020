"""py-spy as the engine that takes the stacks: another process reads them from this one's memory.

Two of them run, because py-spy either takes threads that wait, too, or only those that compute. Its
folded stacks are of bounded size and count each thread for as long as it lives, but know no times.
So each py-spy records only a piece of the run, and the next one follows.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_perf.core.own_cost import own_children
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import DocumentError, SettingError
from mlflow_perf.model.samples import CHILD_PROCESSES, MAIN_THREAD, OTHER_THREADS, Function, Sample
from mlflow_perf.recorders.profile.beside import Beside, BesideEngine
from mlflow_perf.recorders.profile.frames import FrameNames
from mlflow_perf.recorders.profile.windows import StackWindow

_FIRST_PIECE_SEC = 2
_PASSES = ("computing", "all")

_log = get_logger(__name__)

# Records piece after piece, each as long as a 25th of the run so far, while the job lives. A piece
# begins when py-spy says so: before, it has to read the symbols of every process.
_LOOP = """
least=$1 run=0 piece=0
shift
while [ -z "$over" ] && kill -0 "$job"; do
  piece=$((piece + 1)) took=$((run / 25 > least ? run / 25 : least))
  began="$folder/$name.$piece.began"
  : >"$began"
  { "$@" -d "$took" -o "$folder/$name.$piece" || : >"$folder/$name.failed"; } 2>&1 | {
    trap '' INT
    while read -r said; do
      case $said in *"Sampling process"*) : >"$began" ;; esac
      printf '%s\\n' "$said"
    done
  }
  [ ! -e "$folder/$name.failed" ] || break
  run=$((run + took))
done
"""

_ENTRY = re.compile(
    r";thread \((\d+)\)(?:: .*?)?((?:;[^\s;()\"]+ \([^;\n]+:\d+\))+) (\d+)$",
    re.DOTALL | re.MULTILINE,
)
_FRAME = re.compile(r";([^\s;()\"]+) \(([^;\n]+):(\d+)\)")
_PROCESS = re.compile(r"(?:^|;)process (\d+):\"", re.MULTILINE)


@dataclass(frozen=True)
class FoldedStack:
    """One line of py-spy's output.

    Attributes:
        pid: The process.
        thread: The kernel's number of the thread.
        functions: From the outermost to the innermost.
        count: How many samples found it.
    """

    pid: int
    thread: int
    functions: tuple[Function, ...]
    count: int


@dataclass(frozen=True)
class Piece:
    """What one py-spy has recorded.

    Attributes:
        start: Unix time of its first sample.
        end: Unix time of its last one.
        stacks: The stacks.
    """

    start: float
    end: float
    stacks: tuple[FoldedStack, ...]

    def count_by_thread(self) -> Counter[tuple[int, int]]:
        """Return PID and thread → how many samples found it."""
        counts = Counter[tuple[int, int]]()
        for one in self.stacks:
            counts[one.pid, one.thread] += one.count
        return counts


def find_py_spy() -> str:
    """Return the path of py-spy's program.

    Raises:
        SettingError: When it is not installed, or cannot tell the threads of this Python.
    """
    major, minor = sys.version_info[:2]
    if (major, minor) < (3, 11):
        raise SettingError(
            "MLFLOW_PERF_PROFILE_ENGINE is 'py-spy', which tells threads apart from Python 3.11 "
            f"on; this is {major}.{minor}. Leave the setting out."
        )
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise SettingError(
            "MLFLOW_PERF_PROFILE_ENGINE is 'py-spy', which is not installed: "
            "pip install 'mlflow-perf[pyspy]'."
        )
    return found


class PySpyEngine(BesideEngine):
    """Takes the stacks of a process and of the Python processes below it through py-spy.

    Args:
        rate_hz: Samples per second; None for the default.
        program: py-spy's program.
    """

    def __init__(self, rate_hz: float | None, program: str) -> None:
        super().__init__(rate_hz)
        self._program = program

    def _start(self, beside: Beside) -> None:
        for name, option in zip(_PASSES, ([], ["--idle"]), strict=True):
            command = [
                self._program, "record", "--pid", str(os.getpid()), "--subprocesses",
                "--nonblocking", "--rate", f"{max(1, round(self._rate_hz))}", "--function",
                "--full-filenames", "--threads", "--format", "raw", *option,
            ]  # fmt: skip
            beside.start(name, _LOOP, str(_FIRST_PIECE_SEC), *command)

    def _read(self, beside: Beside, ended: float) -> None:
        windows: dict[int, StackWindow] = {}
        computing, every = (_read_pieces(beside, name, ended) for name in _PASSES)
        main = os.getpid()
        ours = {main, *own_children} if self._is_command else set()
        steps = _weigh_samples(every)
        if self._is_command:
            # The first process that is not ours is the command.
            others = ({one.pid for one in piece.stacks} - ours for piece in every)
            main = next((min(pids) for pids in others if pids), main)
        found = []
        totals: dict[tuple[int, Sample], list[float]] = {}
        for place, pieces in enumerate((every, computing)):
            for piece, step_of in zip(pieces, steps, strict=False):
                for one in piece.stacks:
                    if one.thread in self._ours or one.pid in ours:
                        continue
                    root = MAIN_THREAD if one.pid == one.thread == main else OTHER_THREADS
                    line = one.functions[-1].line if one.functions else 0
                    root = root if one.pid == main else CHILD_PROCESSES
                    key = one.pid, Sample(root, line, one.functions)
                    step_sec = step_of.get((one.pid, one.thread), 1 / self._rate_hz)
                    totals.setdefault(key, [0.0, 0.0])[place] += one.count * step_sec
                    found.append((key, piece, place, one.count, step_sec))
        for key, piece, place, count, step_sec in found:
            wall, cpu = totals[key]
            # The two did not look at the same moments: nothing computes for longer than it lasts.
            seconds = count * step_sec * (min(1.0, wall / cpu) if place else 1.0)
            window = windows.setdefault(key[0], StackWindow(self._rate_hz))
            times = (0.0, seconds, 0) if place else (seconds, 0.0, count)
            window.add_span(key[1], (piece.start, piece.end), *times)
        if self._spool is None:
            self._found = [window.as_raw() for window in windows.values()]
            return
        for window in windows.values():
            window.save_to(self._spool)


def _weigh_samples(pieces: Sequence[Piece]) -> list[dict[tuple[int, int], float]]:
    """Return for each piece: PID and thread → seconds of one of its samples.

    A piece has as many samples as the thread that is in most of them: py-spy takes the stacks of a
    thread that runs meanwhile in part of its samples only. Between two pieces it takes none. A
    thread of both lived then, so half of that time belongs to its samples in each of them.
    """
    counts = [piece.count_by_thread() for piece in pieces]
    found = []
    for i, (piece, own) in enumerate(zip(pieces, counts, strict=True)):
        gaps = [
            (counts[j], 0.5 * max(0.0, pieces[max(i, j)].start - pieces[min(i, j)].end))
            for j in (i - 1, i + 1)
            if 0 <= j < len(pieces)
        ]
        seconds = {
            thread: piece.end - piece.start + sum(gap for other, gap in gaps if thread in other)
            for thread in own
        }
        samples = max(own.values(), default=0)
        found.append({thread: length / samples for thread, length in seconds.items()})
    return found


def _read_pieces(beside: Beside, name: str, ended: float) -> list[Piece]:
    """Return what one py-spy after the other has recorded.

    Raises:
        DocumentError: When the first could not read the process, or wrote something else.
        OSError: When a file cannot be read.
    """
    folder = beside.folder
    begun: list[float] = []
    while (mark := folder / f"{name}.{len(begun) + 1}.began").exists():
        begun.append(mark.stat().st_mtime)
    # One that is stopped as it begins has nothing to say.
    if (folder / f"{name}.log").stat().st_size and not (folder / f"{name}.1").exists():
        raise beside.explain(name, "py-spy")
    pieces = []
    for number, start in enumerate(begun, 1):
        # The last one is missing if it was stopped as it began.
        with contextlib.suppress(FileNotFoundError):
            file = folder / f"{name}.{number}"
            text = file.read_text("utf-8", "replace")
            end = max(start, min(ended, file.stat().st_mtime))  # it writes it at its end
            pieces.append(Piece(start, end, tuple(read_folded(text))))
    return pieces


def read_folded(text: str) -> Iterator[FoldedStack]:
    """Yield the stacks of py-spy's folded format, and nothing of the command lines in it.

    Args:
        text: What py-spy has written. Command lines and names of threads may hold anything.

    Raises:
        DocumentError: If it is something else.
    """
    names = FrameNames()
    end = pid = 0
    for entry in _ENTRY.finditer(text):
        processes = _PROCESS.findall(text, end, entry.start())
        end, pid = entry.end(), int(processes[-1]) if processes else pid
        frames = [(name, file, int(line)) for name, file, line in _FRAME.findall(entry[2])]
        yield FoldedStack(pid, int(entry[1]), names.name_all(reversed(frames)), int(entry[3]))
    if text.strip() and not end:
        raise DocumentError("py-spy's file is damaged, or is another one's.")
