"""A control group with a memory limit for one attempt of a step, where one can be made."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mlflow_perf.core.clock import pause
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.pipelines.launch import Rank
from mlflow_perf.readers.cgroup.groups import Group, Groups

_log = get_logger("mlflow_perf.pipelines")
_MB = 2**20
_KILLS = re.compile(r"^oom_kill (\d+)", re.MULTILINE)
_ENTER = 'echo $$ > "$0" 2>/dev/null; exec "$@"'
_EMPTY_SEC = 2.0


class MemoryGroup:
    """A control group whose processes are killed by the kernel when they exceed its limit.

    Args:
        folder: The group's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def enter(self, ranks: Sequence[Rank]) -> list[Rank]:
        """Return the ranks with commands that enter the group before they begin."""
        procs = str(self.folder / "cgroup.procs")
        return [
            Rank(("/bin/sh", "-c", _ENTER, procs, *rank.command), rank.environment, rank.log)
            for rank in ranks
        ]

    def count_kills(self) -> int:
        """Return how many processes of the group were killed because memory ran out."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                found = _KILLS.search((self.folder / name).read_text(encoding="ascii"))
                return int(found[1]) if found else 0
        return 0

    def remove(self) -> None:
        """Remove the group; processes that are about to end are waited for."""
        until = time.monotonic() + _EMPTY_SEC
        while True:
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > until:
                    _log.warning("The control group %s still has processes.", self.folder)
                    return
                pause(0.02)
            else:
                return


@contextlib.contextmanager
def limit_memory(
    limit_mb: float | None, *, own: Group | None = None
) -> Iterator[MemoryGroup | None]:
    """Make a group with a limit for the time of a block; None where none can be made.

    Args:
        limit_mb: The limit, in MB of 2^20 bytes; None makes no group.
        own: The group below or beside which it is made; by default that of this process.
    """
    group = None
    if limit_mb is not None:
        own = own or Groups().find("memory")
        group = None if own is None else _make_group(own, int(limit_mb * _MB))
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


def _make_group(own: Group, limit_bytes: int) -> MemoryGroup | None:
    """Return a new group below our own, or beside it; None where neither is allowed."""
    name = f"mlflow-perf-{secrets.token_hex(4)}"
    limit = "memory.max" if own.version == 2 else "memory.limit_in_bytes"
    swap = "memory.swap.max" if own.version == 2 else "memory.memsw.limit_in_bytes"
    for parent in (own.folder, own.folder.parent):
        if parent == own.top.parent:
            break
        folder = parent / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            # Only the kernel makes this file, where the group has a controller for memory.
            with (folder / limit).open("r+", encoding="ascii") as file:
                file.write(str(limit_bytes))
        except OSError:
            MemoryGroup(folder).remove()
            continue
        with contextlib.suppress(OSError):  # a machine without swap has no such file
            (folder / swap).write_text("0" if own.version == 2 else str(limit_bytes), "ascii")
        return MemoryGroup(folder)
    return None
