"""Why a process ended early: a signal, or the kernel's OOM killer.

The kernel counts OOM kills per memory cgroup. If the count grows between two readings, a process
was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_COUNTERS = ("memory.events", "memory.oom_control")
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def has_own_procfs(proc: Path | str = _PROC) -> bool:
    """Return whether procfs has this process's own numbers, or none of it.

    After `unshare --pid` without `--mount-proc`, a number there is that of another process.
    """
    try:
        return int(Path(proc, "self").readlink().name) == os.getpid()
    except (OSError, ValueError):
        return True


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the kernel does not provide it."""
    return (_read(f"{_PROC}/sys/kernel/random/boot_id") or "").strip()


def pid_namespace() -> str:
    """Return the namespace of this process's id; empty where there are none."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def machine_id() -> str:
    """Return a short name of where this process's id means this process: host, boot, namespace."""
    place = f"{socket.gethostname()} {boot_id()} {pid_namespace()}"
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def _read(path: str) -> str | None:
    """Return a small kernel file's text; None if it cannot be read."""
    try:
        # Path.read_text costs three times as much, and each recording reads several of these.
        # A mock of the job's may have taken the place of `builtins.open`.
        with io.open(path, "rb") as file:  # noqa: UP020 - as above
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def name_signal(number: int) -> str:
    """Return a signal's name: `SIGTERM`."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class End(NamedTuple):
    """How a job ended.

    Attributes:
        status: `FINISHED`, `FAILED` or `KILLED`.
        cause: Why; empty where it finished.
    """

    status: str
    cause: str = ""


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
    found = {}
    if not has_own_procfs(proc):
        pid = "self"  # a command is in its wrapper's group
    for line in (_read(f"{proc}/{pid}/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            places, name = [f"{root}", f"{root}/unified"], _COUNTERS[0]
        elif "memory" in controllers.split(","):
            places, name = [f"{root}/memory"], _COUNTERS[1]
        else:
            continue
        # Inside a container the path is the host's, but the mount begins at the container's own
        # cgroup. So the first counter that can be read is taken; others are the same cgroup.
        below = f"/{path.strip('/')}".rstrip("/")
        for file in (f"{place}{group}/{name}" for place in places for group in (below, "")):
            count = _read_oom_kills(file)
            if count is not None:
                found[file] = count
                break
    return found


def _read_oom_kills(file: str) -> int | None:
    found = _OOM_KILLS.search(_read(file) or "")
    return None if found is None else int(found[1])


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
            grown.append((_read_oom_kills(name) or 0) - count)
    return max(grown)
