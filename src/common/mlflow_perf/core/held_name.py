"""A name that one process of this host holds at a time.

It is the name of a socket: it leaves no file, and ends with its process. Only Linux has such names.
"""

from __future__ import annotations

import errno
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_LOOK_EVERY_SEC = 0.02
_MOST_BYTES = 100  # that the kernel takes


@contextmanager
def holding(names: Sequence[str], *, timeout_sec: float) -> Iterator[None]:
    """Hold one of the names; while other processes hold all of them, wait.

    Args:
        names: The names, each of at most 80 characters.
        timeout_sec: Most seconds to wait; then this process goes on without a name.
    """
    with socket.socket(getattr(socket, "AF_UNIX", socket.AF_INET)) as lock:
        until = time.monotonic() + timeout_sec
        while sys.platform == "linux" and not _take(lock, names) and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_SEC)
        yield


def _take(lock: socket.socket, names: Sequence[str]) -> bool:
    """Return whether one of the names was free, or no name can be taken at all."""
    for name in names:
        try:
            lock.bind(f"\0mlflow-perf {name}".encode()[:_MOST_BYTES])
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
        return True
    return False
