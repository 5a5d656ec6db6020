"""The commands or blocks that the ranks of a job run on one node, as files in the spool folder.

The wrapper of the rank that samples measures the commands of all. It learns their process ids from
these files, and at a command's end its exact CPU time. From the end of a command or a block, the
rank that samples learns its outcome.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

COMMAND, BLOCK = ".command", ".block"
"""Endings of the files' names."""


class RankGoneError(FileNotFoundError):
    """The first rank of the node has removed the folder: what comes now is in no report."""


@dataclass(frozen=True)
class RankCommand:
    """The command, or the block, of one rank.

    Attributes:
        pid: Its process id.
        cpu_sec: Its CPU time, children included, once it has ended; None before.
        status: Its outcome, once it has ended: `FINISHED`, `FAILED` or `KILLED`.
        cause: Why it ended early; None where it ended by itself.
        wrapper_mb: Memory of its wrapper, in MB of 2^20 bytes.
        launcher_pid: The process that started its wrapper; 0 if unknown.
    """

    pid: int
    cpu_sec: float | None = None
    status: str = "FINISHED"
    cause: str | None = None
    wrapper_mb: float = 0.0
    launcher_pid: int = 0


class RankCommands:
    """The commands, or the blocks, of the ranks on this node, in the job's spool folder.

    Args:
        folder: The folder.
        rank: This rank.
        suffix: Ending of the files: commands and blocks have different ones.
    """

    def __init__(self, folder: Path, rank: int, *, suffix: str = COMMAND) -> None:
        self._folder, self._suffix = folder, suffix
        self._file = folder / f"{rank}{suffix}"
        self._ended: dict[str, RankCommand] = {}

    def note(self, command: RankCommand) -> None:
        """Tell the other ranks of this rank's command, or of its end.

        Raises:
            RankGoneError: When the first rank of this node has ended, and removed the folder.
            OSError: When the folder cannot be written.
        """
        begun = self._file.with_suffix(f"{self._suffix}.begun")
        try:
            begun.write_text(json.dumps(asdict(command)), encoding="ascii")
            begun.replace(self._file)
        except FileNotFoundError as error:
            raise RankGoneError(*error.args) from error

    def read_own(self) -> RankCommand | None:
        """Return this rank's command; None if it has none, or it cannot be read."""
        return _read(self._file)

    def others(self) -> list[RankCommand]:
        """Return the commands of the other ranks that have begun."""
        found = dict(self._ended)
        for file in self._folder.glob(f"*{self._suffix}"):
            if file.name in found or file == self._file:
                continue
            command = _read(file)
            if command is not None:
                found[file.name] = command
                if command.cpu_sec is not None:
                    self._ended[file.name] = command
        return list(found.values())

    def cpu_by_pid(self) -> dict[int, float | None]:
        """Return the CPU time of the other ranks' commands by process id; None while one runs."""
        return {command.pid: command.cpu_sec for command in self.others()}


def _read(file: Path) -> RankCommand | None:
    # A rank of a requeued job may have left half a file.
    with contextlib.suppress(OSError, ValueError, TypeError):
        return RankCommand(**json.loads(file.read_text(encoding="ascii")))
    return None
