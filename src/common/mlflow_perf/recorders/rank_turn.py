"""Which blocks of a job's ranks belong together, where each rank has several, one after the other.

The ranks end a block within milliseconds of each other, and the next one of some may begin before
the first rank has ended its own. So the n-th block of the first rank on a node has a folder of its
own, and a file tells the others which n it is at.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from mlflow_perf.core.interrupt_flag import at_exit
from mlflow_perf.node.exit_cause import machine_id

_LEFT_OVER_SEC = 30 * 24 * 3600.0


@dataclass
class _Last:
    """A rank's last block of a job."""

    number: int = 0
    block: str = ""
    closed: float | None = None  # when its end was dealt with, on the monotonic clock
    is_named: bool = False  # whether it had the name of the first rank's block


_last: dict[tuple[Path, int], _Last] = {}  # of this process


@dataclass(frozen=True)
class LeadingBlock:
    """The block of the first rank on a node, as the other ranks see it.

    Attributes:
        number: 1, 2, …; 0 before the first one.
        name: Its name.
        is_open: Whether it, or the wait for other ranks at its end, goes on.
    """

    number: int = 0
    name: str = ""
    is_open: bool = False

    def find_number(self, last: _Last, name: str) -> int:
        """Return the number of another rank's next block.

        Args:
            last: That rank's last block.
            name: The next one's name, where that rank's blocks have had those of the first rank's.
        """
        if self.is_open and name and name != self.name:
            return self.number + 1  # this is one of the first rank alone
        # Where the first rank's block has another name, this rank's blocks are parts of it.
        if self.is_open and self.number == last.number and self.name != last.block:
            return self.number
        return max(self.number if self.is_open else self.number + 1, last.number + 1)

    def write(self, file: Path) -> None:
        """Tell the other ranks, if that is possible."""
        with contextlib.suppress(OSError):
            fresh = file.with_suffix(".fresh")
            text = f"{os.getpid()} {machine_id()} {self.number} {self.is_open:d} {self.name}"
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(file)

    @classmethod
    def read(cls, file: Path) -> LeadingBlock:
        """Return what the first rank has told; a file of an earlier job tells nothing."""
        with contextlib.suppress(OSError, ValueError, OverflowError):
            pid, _, number, is_open, name = file.read_text(encoding="utf-8").split(" ", 4)
            os.kill(int(pid), 0)
            return cls(int(number), name, is_open == "1")
        return cls()


class RankTurn:
    """The place of one block among those of a job.

    Args:
        folder: The folder of the first blocks; those of later ones have its name and a number.
        block: The block's name.
        rank: Number of this rank.
        leads: Whether it is the one that samples.
        list_waiting: Returns the names of the blocks that other ranks have begun in a folder.

    Attributes:
        folder: The block's folder.
        after: When the block of this process before it was over, on the monotonic clock; None
            without one.
        name: The block's name, where this rank's blocks have had those of the first rank's.
    """

    def __init__(
        self,
        folder: Path,
        block: str,
        rank: int,
        *,
        leads: bool,
        list_waiting: Callable[[Path], Collection[str]] = lambda _: (),
    ) -> None:
        self._file, self._pid = folder.with_name(f"{folder.name}.turn"), os.getpid()
        self._block, self._leads = block, leads
        last = self._last = _last.setdefault((folder, rank), _Last())
        self.after, self.name = last.closed, block if last.is_named else ""
        self._number = last.number + 1
        if not leads:
            self._number = LeadingBlock.read(self._file).find_number(last, self.name)
        self.folder = folder if self._number == 1 else Path(f"{folder}-{self._number}")
        if leads:
            if self.after is None:
                at_exit(self.forget)
            # The others wait in a later block, and this one is of the first rank alone.
            self._is_alone = block not in (waiting := list_waiting(self.folder)) and bool(waiting)
            if self._is_alone:
                self._number, self.folder = last.number, Path(f"{self.folder}-alone")
            else:
                LeadingBlock(self._number, block, is_open=True).write(self._file)

    def end(self) -> bool:
        """Note that the block is over: what this rank begins from now on is of a later one.

        Returns:
            Whether the first rank on this node reports blocks, perhaps an earlier one now.
        """
        self._last.number, self._last.block = self._number, self._block
        leading = LeadingBlock.read(self._file)
        if leading.number == self._number:
            self._last.is_named = leading.name == self._block
        return leading.number > 0

    def close(self) -> None:
        """Let no rank come late to the block of the first rank, which has dealt with its end."""
        self._last.closed = time.monotonic()
        if self._leads and not self._is_alone:
            LeadingBlock(self._number, self._block).write(self._file)

    def forget(self) -> None:
        """Remove the file at the exit of the process that wrote it, not of a forked child."""
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._file.unlink()


def is_left_over(file: Path) -> bool:
    """Return whether the rank is dead that wrote a file which begins with its id and machine.

    The processes of another machine or container cannot be seen: they count as dead after a month.
    """
    with contextlib.suppress(OSError, ValueError, OverflowError):
        pid, machine = file.read_text(encoding="utf-8").split(" ")[:2]
        return (machine == machine_id() or is_old(file)) and not psutil.pid_exists(int(pid))
    return False


def is_old(file: Path) -> bool:
    """Return whether a file, or what is in a folder, was last changed a month ago.

    Raises:
        OSError: When it is gone.
    """
    return time.time() - file.stat().st_mtime > _LEFT_OVER_SEC
