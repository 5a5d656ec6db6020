"""Read files that somebody else wrote: no pipe or device, and no more than a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_MB = 1 << 20
_NO_FILE = "it is a pipe, a socket or a device, not a file"


def open_foreign(path: Path, *, most_mb: int) -> BinaryIO:
    """Open a regular file for reading.

    A pipe could keep its reader waiting, and a device could fill the memory.

    Args:
        path: The file; a link is followed.
        most_mb: Its largest size, in MB of 2^20 bytes.

    Raises:
        OSError: It cannot be opened, is no regular file, or is too large; `strerror` says which.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        facts = os.fstat(handle)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, _NO_FILE, str(path))
        if facts.st_size > most_mb * _MB:
            raise OSError(errno.EFBIG, f"it has more than {most_mb:,} MB", str(path))
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def read_foreign(path: Path, *, most_mb: int) -> bytes:
    """Return the bytes of a regular file; arguments and errors as in `open_foreign`."""
    with open_foreign(path, most_mb=most_mb) as file:
        data = file.read(most_mb * _MB + 1)
    if len(data) > most_mb * _MB:  # it has grown, or is a file of the kernel's
        raise OSError(errno.EFBIG, f"it has more than {most_mb:,} MB", str(path))
    return data
