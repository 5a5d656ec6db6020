"""File descriptors that mlflow-perf keeps open for long inside the job's process.

A job may close every descriptor that it does not know, as daemons do. The files that it opens next
then get the same numbers. So our descriptors have high numbers, which new files do not get soon.
Before a descriptor is used or closed, it is compared with the file that it was opened for.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import sys
from collections.abc import Callable, Iterator
from itertools import starmap

from mlflow_perf.core.originals import os
from mlflow_perf.core.threads import Lock

if sys.platform != "win32":
    import fcntl
    import resource

_HIGHEST_START = 512


def open_high(opener: Callable[..., int], *arguments: object) -> int:
    """Open a descriptor with a number in the upper half of all numbers, and return it.

    Args:
        opener: Opens it, such as `os.open`.
        *arguments: What `opener` is called with.

    Raises:
        OSError: When it cannot be opened, or there is no room: the lower half is the job's.
    """
    held: list[int] = []
    try:
        # A signal handler of the job may raise after any call that Python code makes. What C code
        # calls is noted, or forgotten, before that.
        held.extend(starmap(opener, [arguments]))
        if sys.platform != "win32":
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            start = _HIGHEST_START if limit < 0 else min(_HIGHEST_START, limit // 2)
            held.extend(starmap(fcntl.fcntl, [(held[0], fcntl.F_DUPFD_CLOEXEC, start)]))
            any(map(os.close, map(held.pop, [0])))
        return held[0]
    except BaseException:
        for handle in held:
            os.close(handle)
        raise


class OwnDescriptor:
    """An open descriptor that knows whether its number still means the same file.

    Args:
        opener: Opens it.
        *arguments: What `opener` is called with.

    Raises:
        OSError: When it cannot be opened.

    Attributes:
        number: Its number; −1 once it is closed.
    """

    def __init__(self, opener: Callable[..., int], *arguments: object) -> None:
        self._file: os.stat_result | None = None  # not yet known
        self.number = open_high(opener, *arguments)
        self._file = os.fstat(self.number)

    def is_ours(self) -> bool:
        """Return whether the number still means our file."""
        try:
            self.check()
        except OSError:
            return False
        return True

    def check(self) -> None:
        """Raise what is wrong with it.

        Raises:
            OSError: When the job has closed it, or the file system is away.
        """
        try:
            now = os.fstat(self.number)
            is_same = self._file is None or os.path.samestat(now, self._file)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            is_same = False
        if not is_same:
            raise OSError(errno.EBADF, "the job closed its descriptor")

    def close(self) -> None:
        """Close it, unless the number belongs to another file by now."""
        if self.is_ours():
            with contextlib.suppress(OSError):
                os.close(self.number)
        self.number = -1

    def __del__(self) -> None:
        # A signal handler of the job may raise before anybody holds this.
        with contextlib.suppress(Exception):  # not yet opened
            self.close()


class OwnMap:
    """A file mapped into memory; unmapping it never closes a descriptor of the job.

    Args:
        handle: The open file; a map keeps a copy of it.
        size: How many bytes.

    Attributes:
        data: The bytes.

    Raises:
        OSError: When it cannot be mapped.
    """

    def __init__(self, handle: int, size: int) -> None:
        copy = os.dup(handle)
        os.close(copy)
        self.data = _map(handle, size)
        # The copy of the map gets the lowest free number, and does not say which that is.
        self._copy = copy if self._means_same(copy, handle) else None
        self._file = os.fstat(handle)

    @staticmethod
    def _means_same(number: int, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(number), os.fstat(handle))
        except OSError:
            return False

    def is_whole(self) -> bool:
        """Return whether the file still has its bytes: to touch one that it lacks ends the process.

        Also false when the job has closed the descriptor of the map.
        """
        try:
            return self.data.size() >= len(self.data)
        except OSError:
            return False

    def close(self) -> None:
        """Unmap the bytes; they stay mapped if the copy's number now belongs to another file."""
        with contextlib.suppress(OSError):
            if self._copy is None or os.path.samestat(os.fstat(self._copy), self._file):
                self.data.close()
                return
        _abandoned.append(self.data)


_map = mmap.mmap  # a test of the job may replace it meanwhile
_LAST_STANDARD = 2
_holding = Lock()
_holders = 0
_held: list[tuple[int, os.stat_result]] = []
_abandoned: list[mmap.mmap] = []


@contextlib.contextmanager
def standard_numbers_taken() -> Iterator[None]:
    """Occupy the descriptors 0, 1 and 2 where the job has closed them.

    Otherwise a connection or a file of ours could get one of them, and the job's output with it.
    """
    global _holders  # noqa: PLW0603 - the numbers are the process's
    with _holding:
        _holders += 1
        with contextlib.suppress(OSError):
            while (handle := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
                _held.append((handle, os.fstat(handle)))
            os.close(handle)
    try:
        yield
    finally:
        with _holding:
            _holders -= 1
            if not _holders:
                _give_back()


def _give_back() -> None:
    while _held:
        handle, file = _held.pop()
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(handle), file):
                os.close(handle)


def _leave_parent() -> None:
    """Give the numbers back in a forked child: the threads that took them are not there."""
    global _holding, _holders
    _holding, _holders = Lock(), 0
    _give_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_parent)
