"""A name that one process of this host holds at a time.

It is the name of a socket: it leaves no file, and ends with its process. Only Linux has such names;
elsewhere nobody waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence

_LOOK_EVERY_SEC = 0.02
_MOST_BYTES = 100  # that the kernel takes
_holders: set[socket.socket] = set()


@contextlib.contextmanager
def holding(names: Sequence[str], *, timeout_sec: float) -> Iterator[None]:
    """Hold one of the names; while other processes hold all of them, wait.

    Args:
        names: The names, each of at most 80 characters.
        timeout_sec: Most seconds to wait; then this process goes on without a name.
    """
    with contextlib.ExitStack() as until_then:
        # A sandbox, or an audit hook of the job, may refuse sockets: then nobody waits for anybody.
        with contextlib.suppress(Exception):
            lock = until_then.enter_context(socket.socket(socket.AF_UNIX))
            _holders.add(lock)
            until_then.callback(_holders.discard, lock)
            until = time.monotonic() + timeout_sec
            is_linux = sys.platform == "linux"
            while is_linux and not _take(lock, names) and time.monotonic() < until:
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


def _let_go() -> None:
    """Close the names in a forked child, whose copies would keep them as long as it lives."""
    while _holders:
        _holders.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
