"""Why a process ended before its time: a signal, the kernel's OOM killer. Imports nothing of ours.

The kernel counts OOM kills per memory cgroup: what grew between two looks says that one happened.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

__all__ = ["boot_id", "new_oom_kills", "oom_counts", "signal_name"]

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_COUNTERS = ("memory.events", "memory.oom_control")


def boot_id() -> str:
    """Return a text that is another after each start of the machine; empty where none tells."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def signal_name(number: int) -> str:
    """Return a signal's name: `SIGTERM`."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def oom_counts(
    pid: int | str = "self", *, root: Path = _ROOT, proc: Path = _PROC
) -> dict[str, int]:
    """Return how often the OOM killer has struck in the memory cgroups of a process.

    Args:
        pid: The process.
        root: Where the cgroups are mounted.
        proc: Where procfs is mounted.

    Returns:
        Path of the counter's file → its count; empty where none can be read.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for file in _counter_files(root, controllers, path):
            count = _oom_kills(file)
            if count is not None:
                found[str(file)] = count
                break  # the others are the same cgroup as a container sees it
    return found


def _counter_files(root: Path, controllers: str, path: str) -> list[Path]:
    # Inside a container the path is the host's, while the mount begins at the container's own.
    if controllers == "":
        places = [root, root / "unified"]
        name = _COUNTERS[0]
    elif "memory" in controllers.split(","):
        places, name = [root / "memory"], _COUNTERS[1]
    else:
        return []
    return [folder / name for p in places for folder in (p / path.lstrip("/"), p)]


def _oom_kills(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in text.splitlines() if line[:9] == "oom_kill ")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def new_oom_kills(before: Mapping[str, int]) -> int:
    """Return how many OOM kills the counters have counted since a look at them.

    Args:
        before: What `oom_counts` returned then. A counter that is gone has counted nothing.
    """
    # Read back from a journal, a name may be anything: only a cgroup's counter is opened.
    sound = {name: n for name, n in before.items() if _is_counter(name)}
    return max((max(0, (_oom_kills(Path(name)) or 0) - n) for name, n in sound.items()), default=0)


def _is_counter(name: str) -> bool:
    path = Path(name)
    return path.name in _COUNTERS and ".." not in path.parts and not path.is_symlink()
