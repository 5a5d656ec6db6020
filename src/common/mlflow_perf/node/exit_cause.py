"""Why a process ended early: a signal, or the kernel's OOM killer.

The kernel counts OOM kills per memory cgroup. Growth between two readings shows that one happened.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_COUNTERS = ("memory.events", "memory.oom_control")


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the kernel does not provide it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def name_signal(number: int) -> str:
    """Return a signal's name: `SIGTERM`."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def read_oom_counts(
    pid: int | str = "self", *, root: Path = _ROOT, proc: Path = _PROC
) -> dict[str, int]:
    """Return how often the OOM killer has struck in the memory cgroups of a process.

    Args:
        pid: The process.
        root: Where the cgroups are mounted.
        proc: Where procfs is mounted.

    Returns:
        Path of the counter's file → its count; empty if none can be read.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            places, name = [root, root / "unified"], _COUNTERS[0]
        elif "memory" in controllers.split(","):
            places, name = [root / "memory"], _COUNTERS[1]
        else:
            continue
        # Inside a container the path is the host's, but the mount begins at the container's own
        # cgroup. So the first counter that can be read is taken; others are the same cgroup.
        for file in (folder / name for p in places for folder in (p / path.lstrip("/"), p)):
            count = _read_oom_kills(file)
            if count is not None:
                found[str(file)] = count
                break
    return found


def _read_oom_kills(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in text.splitlines() if line[:9] == "oom_kill ")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def count_new_oom_kills(before: Mapping[str, int]) -> int:
    """Return how many OOM kills the counters have counted since an earlier reading.

    Args:
        before: What `read_oom_counts` returned then. A counter that is gone has counted nothing.
    """
    grown = [0]
    for name, count in before.items():
        path = Path(name)
        # A name from a journal may be anything: only the counter of a cgroup is opened.
        if path.name in _COUNTERS and ".." not in path.parts and not path.is_symlink():
            grown.append((_read_oom_kills(path) or 0) - count)
    return max(grown)
