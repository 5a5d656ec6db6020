"""What is mounted where, and which folders are on a file system that may stop to answer."""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path
from typing import NamedTuple

from mlflow_perf.core.originals import os

_REMOTE = re.compile(
    r"9p|afs|beegfs|ceph|cifs|dvs|fhgfs|fuse$|fuse\.|gfs2|gpfs|lustre|nfs|ocfs2|orangefs|panfs|pvfs"
    r"|smb|vboxsf|virtiofs|weka"
)
_LISTED = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """One file system that this process sees.

    Attributes:
        place: Where it is mounted.
        kind: The kernel's name of its type.
    """

    place: Path
    kind: str


def list_mounts(listed: Path = _LISTED) -> list[Mount]:
    """Return what is mounted, the earlier first; nothing on other systems than Linux.

    Args:
        listed: Where the kernel lists it (proc_pid_mountinfo(5)).
    """
    found = []
    with contextlib.suppress(OSError):
        for row in listed.read_text(errors="surrogateescape").splitlines():
            about, _, kind = row.partition(" - ")
            place = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), about.split()[4])
            found.append(Mount(Path(place), kind.partition(" ")[0]))
    return found


@functools.cache
def is_remote(folder: Path, listed: Path = _LISTED) -> bool:
    """Return whether a folder is on a network's file system, or on one that a program serves.

    Args:
        folder: The folder, which may not exist.
        listed: As for `list_mounts`.
    """
    mounts = list_mounts(listed)
    # The second asks the file system of each part, which may hang.
    return _is_below_remote(folder, mounts) or _is_below_remote(
        Path(os.path.realpath(folder)), mounts
    )


def _is_below_remote(folder: Path, mounts: list[Mount]) -> bool:
    above = [one for one in mounts if folder.is_relative_to(one.place)]
    # Of two at the same place, the later one hides the other.
    nearest = max(reversed(above), key=lambda one: len(one.place.parts), default=None)
    return nearest is not None and _REMOTE.match(nearest.kind) is not None
