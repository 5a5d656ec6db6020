"""The spool folder of a session, through which the ranks of a job on one node find each other.

The rank that samples waits at its end for the last records of the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from mlflow_perf.core.format import format_count
from mlflow_perf.core.program_age import process_age_sec
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.node.exit_cause import machine_id
from mlflow_perf.node.place import Node
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.rank_commands import BLOCK, COMMAND, RankCommand, RankCommands
from mlflow_perf.recorders.rank_turn import RankTurn, is_left_over, is_old
from mlflow_perf.recorders.spool_places import (
    choose_place,
    find_base,
    name_machine,
    remove_left_over,
)

# Each rank has a file `<rank>.rank` with its process id and its machine's while it records, a
# file `<rank>.came` from its beginning on, with its block's name if the first rank has it too, and
# a file `<rank>.block` from its end on.
_RECORDING = ".rank"
_STARTED = ".came"
# The rank that samples has a file with both, and its run's id once it has one.
_SAMPLER = "0.sampler"
_SHARED = "spool-"
"""Start of the name of a folder that several ranks share."""

_POLL_SEC = 0.02
# How long to wait for ranks that still record. They may be waiting for this rank, at a barrier.
_MAX_RECORDING_SEC = 10.0
# Ranks that fail for one reason end at nearly the same time.
_AFTER_FAILURE_SEC = 2.0
# How long to wait for ranks that have not started, as a multiple of the time that this rank took to
# start: where many ranks start at once on few cores, the last one comes late. It counts from the
# start of this rank, so a job that takes longer than that waits for nobody.
_START_FACTOR = 3.0
_MAX_START_SEC = 30.0

_patience_sec = 1.0
"""How long to wait for the rank that samples here to begin."""

_told_of_early: list[int] = []  # one line is enough for a loop of blocks

_WORDLESS = "a rank was killed or ended without a word (SIGKILL, OOM kill, os._exit)"

_log = get_logger(__name__)


class SpoolFolder:
    """The folder in which the processes of a job on this node write their records.

    Args:
        node: Place of this process in its job.
        run_id: The run that all ranks were given; identifies the job if the launcher gives no id.
        block: The name of the block.
        parent: Where a job of one process has its folder, unless that file system may stop to
            answer: the job writes its records into memory that is mapped from there.

    Attributes:
        path: The folder; None if it could not be made, so that only this process is recorded.
        is_shared: Whether it is that of all ranks of the job on this node.
        commands: The commands that the ranks on this node wrap; None where there is one rank.
        above: The commands of the wrappers that each rank on this node runs in; None without them.
    """

    def __init__(self, node: Node, run_id: str | None, block: str = "", *, parent: Path) -> None:
        self._node = node
        self.is_shared = node.world_size > 1 and not node.pool
        self._started = time.monotonic()
        self.path: Path | None = None
        self.commands: RankCommands | None = None
        self.above: RankCommands | None = None
        self._blocks: RankCommands | None = None
        self._block = block
        self._turn: RankTurn | None = None
        self._in_time: int | None = None  # ranks that came before the report was made
        try:
            if not self.is_shared:
                with contextlib.suppress(OSError):
                    place = choose_place(parent)
                    place.mkdir(parents=True, exist_ok=True, mode=0o700)
                    remove_left_over(place)  # a queue's workers end by `os._exit` after each job
                    prefix = f"{name_machine()}{os.getpid()}_"
                    self.path = spool.create(place, prefix=prefix)
                self.path = self.path or spool.create()
            else:
                self.path = self._join_ranks(run_id)
                self.commands = RankCommands(self.path, node.rank)
                self._blocks = RankCommands(self.path, node.rank, suffix=BLOCK)
                if node.samples:
                    self.note_run(None)
        except OSError as error:
            _log.warning("Operations of other processes cannot be gathered: %s", error)

    def _join_ranks(self, run_id: str | None) -> Path:
        """Make or enter the folder whose name all ranks of the job on this node derive."""
        node = self._node
        # MLFLOW_RUN_ID is the same in all ranks, and differs between two steps of one batch job.
        # Where each rank has a wrapper, the blocks below find each other by the wrappers' folder,
        # and have another one: the first to end removes it.
        above = Path(os.environ.get(spool.VARIABLE, ""))
        wrappers = None
        if above.name.startswith(_SHARED) and (above / f"{node.rank}{COMMAND}").exists():
            self.above, wrappers = RankCommands(above, node.rank), above.name
        shared = (node.job_key, os.environ.get("MLFLOW_RUN_ID"), wrappers)
        job = f"{node.launcher}:{shared if any(shared) else run_id or os.getppid()}:{node.index}"
        name = hashlib.sha256(job.encode()).hexdigest()[:16]
        base = find_base(make=True)
        self._turn = RankTurn(
            base / f"{_SHARED}{name}",
            self._block,
            node.rank,
            leads=node.samples,
            list_waiting=_list_blocks,
        )
        if node.samples and self._turn.after is None:
            remove_dead_ranks()
        path = self._turn.folder
        path.mkdir(mode=0o700, exist_ok=True)
        if path.is_symlink():
            raise PermissionError(f"{path} is a link")
        (path / f"{node.rank}{BLOCK}").unlink(missing_ok=True)
        recording = f"{os.getpid()} {machine_id()}"
        (path / f"{node.rank}{_RECORDING}").write_text(recording, encoding="ascii")
        (path / f"{node.rank}{_STARTED}").write_text(self._turn.name, encoding="utf-8")
        return path

    def note_run(self, run_id: str | None) -> None:
        """Tell the other ranks on this node that this one samples, and in which run it reports."""
        if self.is_shared and self.path is not None:
            with contextlib.suppress(OSError):
                fresh = self.path / f"{self._node.rank}.fresh"
                text = f"{os.getpid()} {machine_id()} {run_id or ''}"
                fresh.write_text(text, encoding="utf-8")
                fresh.replace(self.path / _SAMPLER)

    def read_run(self) -> str | None:
        """Return the run of the rank that samples here; empty until it has one, or None."""
        with contextlib.suppress(OSError, ValueError, OverflowError):
            if self.path is not None:
                pid, _, run_id = (self.path / _SAMPLER).read_text(encoding="utf-8").split(" ")
                os.kill(int(pid), 0)
                return run_id
        return None

    def await_run(self, timeout_sec: float) -> str | None:
        """Wait for the run of the rank that samples here; return None if it has none in time.

        That rank may come a little later. Where it never does, no further block waits for it.

        Args:
            timeout_sec: Most seconds to wait for the run of a rank that has come.
        """
        global _patience_sec  # noqa: PLW0603 - one launch for the process
        began = time.monotonic()
        while not (run_id := self.read_run()):
            limit_sec = _patience_sec if run_id is None else timeout_sec
            if time.monotonic() >= began + limit_sec:
                break
            time.sleep(_POLL_SEC)
        if run_id is None:
            _patience_sec = 0.0
        return run_id or None

    def begin_sampling(
        self, *, is_command: bool
    ) -> tuple[RankCommands | None, RankCommands | None]:
        """Return whose processes are sampled from now on: see `commands` and `above`.

        A rank whose block has ended by now is missing in the figures, and a warning says so.

        Args:
            is_command: Whether each rank wraps a command, and tells of its whole CPU time.
        """
        if is_command:
            return self.commands, self.above
        early = 0 if self._blocks is None or not self._node.samples else len(self._blocks.others())
        if early and not _told_of_early:
            _told_of_early.append(early)
            _log.warning(
                "%s of this node had ended before the first one began: what was used there is in "
                "no figure. Let a barrier follow the beginning of the blocks.",
                format_count(early, "rank"),
            )  # fmt: skip
        return None, self.above

    def wait_for_others(self, timeout_sec: float, *, briefly: bool = False) -> None:
        """Wait until the other ranks on this node have ended their recordings or died.

        Args:
            timeout_sec: Most seconds.
            briefly: Whether this rank failed, so that the launcher waits for it to end the others.
        """
        if not self.is_shared or self.path is None:
            return
        self.leave()
        end = time.monotonic() + min(timeout_sec, _AFTER_FAILURE_SEC if briefly else timeout_sec)
        while time.monotonic() < end and self.is_rank_missing():
            time.sleep(_POLL_SEC)
        end = min(end, time.monotonic() + _MAX_RECORDING_SEC)
        while (left := _count_recording(self.path)) and time.monotonic() < end:
            time.sleep(_POLL_SEC)
        self._in_time = None if briefly else self.count_ranks()
        if left:
            _log.warning(
                "%s of this node had not ended yet: operations recorded there last may be missing.",
                format_count(left, "other rank"),
            )  # fmt: skip

    def count_ranks(self) -> int:
        """Return how many ranks of this node have come so far."""
        return 0 if self.path is None else len(list(self.path.glob(f"*{_STARTED}")))

    def is_rank_missing(self) -> bool:
        """Return whether a rank of this node has not started yet and may still do so."""
        if self.path is None or self.count_ranks() >= self._node.local_size:
            return False
        start_sec = process_age_sec(at=self._started)
        if self._turn is not None and self._turn.after is not None:
            start_sec = self._started - self._turn.after
        start_sec = min(start_sec, _MAX_START_SEC)
        return time.monotonic() < self._started + _START_FACTOR * start_sec

    @property
    def leads(self) -> bool:
        """Whether this rank samples for others."""
        return self._node.samples and self.is_shared and self.path is not None

    def has_others(self) -> bool:
        """Return whether other ranks of this node record now."""
        return self.path is not None and _count_recording(self.path, but=self._node.rank) > 0

    def list_other_commands(self) -> list[RankCommand]:
        """Return the commands of the other ranks on this node, where this rank samples."""
        return [] if self.commands is None or not self._node.samples else self.commands.others()

    def list_other_ends(self) -> list[RankCommand]:
        """Return how the blocks of the other ranks ended, also of those that died in theirs."""
        if self._blocks is None or self.path is None:
            return []
        dead = [file for file in self.path.glob(f"*{_RECORDING}") if _has_died(file)]
        return self._blocks.others() + [RankCommand(0, 0.0, "KILLED", _WORDLESS) for _ in dead]

    def leave(self, status: str | None = None, cause: str | None = None) -> None:
        """Tell the other ranks that this rank has ended its recording.

        Args:
            status: How its block ended; None to leave that unsaid.
            cause: Why it ended early.
        """
        if self._blocks is not None and self.path is not None:
            with contextlib.suppress(OSError):
                if status is not None:
                    self._blocks.note(RankCommand(os.getpid(), 0.0, status, cause))
                (self.path / f"{self._node.rank}{_RECORDING}").unlink(missing_ok=True)
        is_led = self._turn is not None and self._turn.end()
        # The rank that samples removes the folder at its end.
        if self._node.samples or self.path is None or not self.path.exists():
            return
        if not (is_led or (self.path / _SAMPLER).exists()):
            _log.warning(
                "Nothing is reported of rank %d: the first rank on this node reports nothing, or "
                "was not found. Let it report too; where the launcher tells no job's id, set "
                "MLFLOW_RUN_ID to the same run in all ranks.", self._node.rank,
            )  # fmt: skip

    def remove(self) -> None:
        """Delete the folder, after everything in it was collected."""
        late = 0 if self._in_time is None else self.count_ranks() - self._in_time
        if late > 0:
            _log.warning(
                "%s of this node began when the first one had ended: what was used there is in no "
                "figure.", format_count(late, "rank"),
            )  # fmt: skip
        if self.path is not None:
            (_remove if self.is_shared else spool.remove)(self.path)
        if self._turn is not None:
            self._turn.close()

    def forget(self) -> None:
        """Remove what tells other ranks of this process's blocks: there comes none any more."""
        if self._turn is not None and self._node.samples:
            self._turn.forget()


def remove_dead_ranks() -> None:
    """Delete the folders of this user's jobs here whose first rank was killed, or never came.

    A folder without a first rank is kept for a month: that rank may still come. So is what another
    machine or container left where they share this place: its processes cannot be seen from here.
    """
    with contextlib.suppress(OSError):
        for found in find_base().glob(f"{_SHARED}*"):
            if found.suffix:
                if is_left_over(found):
                    found.unlink()
                continue
            ranks = [*found.glob(f"*{_RECORDING}"), *found.glob(_SAMPLER)]
            if (is_old(found) or (found / _SAMPLER).exists()) and all(map(is_left_over, ranks)):
                _remove(found)


def _remove(folder: Path) -> None:
    """Delete a spool folder with what the ranks of a job wrote there."""
    for file in folder.glob("*.*"):
        if file.suffix in (_RECORDING, _STARTED, COMMAND, BLOCK, Path(_SAMPLER).suffix):
            file.unlink(missing_ok=True)
    spool.remove(folder)


def _count_recording(folder: Path, *, but: int = -1) -> int:
    """Return how many ranks still record, except one; ranks whose process is gone do not count."""
    files = folder.glob(f"*{_RECORDING}")
    return sum(file.name != f"{but}{_RECORDING}" and _lives(file) for file in files)


def _list_blocks(folder: Path) -> set[str]:
    """Return the names that the blocks of the ranks have which record in a folder."""
    names = set[str]()
    for file in folder.glob(f"*{_RECORDING}"):
        with contextlib.suppress(OSError, ValueError):
            if _lives(file):
                names.add(file.with_suffix(_STARTED).read_text(encoding="utf-8"))
    return names - {""}


def _lives(file: Path) -> bool:
    """Return whether the process of a rank that records lives."""
    with contextlib.suppress(OSError, ValueError, OverflowError):
        os.kill(int(file.read_text(encoding="ascii").partition(" ")[0]), 0)
        return True
    return False


def _has_died(file: Path) -> bool:
    """Return whether a rank died while it recorded: in another container it cannot be seen."""
    with contextlib.suppress(OSError, ValueError):
        machine = file.read_text(encoding="ascii").partition(" ")[2]
        return machine == machine_id() and not _lives(file) and file.exists()
    return False
