"""Repeated, cheap reading of files in procfs, sysfs and control groups."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from itertools import starmap
from pathlib import Path
from typing import Any

from mlflow_perf.core.descriptors import open_high
from mlflow_perf.core.originals import open_file, os
from mlflow_perf.errors import SourceUnavailableError

_FIRST_SIZE = 8192
_LISTING_SIZE = 1 << 15
_READ_ONLY = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)  # Windows has no such flag
# In a linux_dirent64: its length (24 or 32 bytes), the type "folder", the name. Without the length,
# what an earlier listing left in the up to seven bytes behind a name would be found, too.
_LENGTH = rb"[\x18\x20]\x00" if sys.byteorder == "little" else rb"\x00[\x18\x20]"
_DIRECTORY = re.compile(_LENGTH + rb"\x04(\d+)\x00")

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "pread": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long),
    "getdents64": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
    "lseek": (ctypes.c_long, ctypes.c_int, ctypes.c_long, ctypes.c_int),
    "openat": (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int),
    "read": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
    "close": (ctypes.c_int, ctypes.c_int),
}
"""C function → the types of its result and its arguments."""


def _load_libc() -> ctypes.PyDLL | None:
    """Return the C library, called with the GIL held; None where it lacks one of our functions.

    Python's own `os.pread` and `os.listdir` release the GIL. Beside a busy main thread, a sampler
    that releases it waits up to a switch interval (5 ms) to get it back, and each hand-over costs
    the main thread. A read of procfs never blocks and takes 2 to 30 µs: keeping the GIL is cheaper.
    """
    try:
        libc = ctypes.PyDLL(None)
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(libc, name)
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError, TypeError):
        return None
    return libc


_LIBC = _load_libc()
_PREAD = None if _LIBC is None else _LIBC.pread


def _open(path: str) -> int:
    try:
        return open_high(os.open, path, _READ_ONLY)
    except OSError as error:
        raise SourceUnavailableError(f"{path}: {error.strerror}.") from error


class ProcFile:
    """A kernel file that stays open and is read from its beginning at each call.

    Use it only for files that the kernel answers at once (procfs, sysfs, control groups): the read
    keeps the GIL.

    Args:
        path: The file.

    Raises:
        SourceUnavailableError: When the file cannot be opened.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        self._fd = _open(self.path)
        self._resize(_FIRST_SIZE)

    def _resize(self, size: int) -> None:
        self._size = size
        self._buffer = ctypes.create_string_buffer(size)
        self._address = ctypes.addressof(self._buffer)
        self._view = memoryview(self._buffer).cast("B")

    def read(self) -> bytes:
        """Return the file's present content.

        Raises:
            OSError: When the kernel refuses, for example because the process has ended.
        """
        if _PREAD is not None:
            count: int = _PREAD(self._fd, self._address, self._size, 0)
            while count == self._size:
                self._resize(2 * self._size)
                count = _PREAD(self._fd, self._address, self._size, 0)
            if count >= 0:
                return bytes(self._view[:count])
        # After a failure, os.pread tries again and raises the error with its number and text.
        data = os.pread(self._fd, self._size, 0)
        while len(data) == self._size:
            self._resize(2 * self._size)
            data = os.pread(self._fd, self._size, 0)
        return data

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the job has closed what it does not know
                os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # A signal handler of the job may raise while the reader that holds this is being made.
        with contextlib.suppress(Exception):  # not yet opened
            self.close()


def open_first(*paths: Path | str) -> ProcFile | None:
    """Open the first of several files that exists and may be read; return None without one."""
    for path in paths:
        try:
            return ProcFile(path)
        except SourceUnavailableError:
            continue
    return None


def read_text(path: Path | str) -> str | None:
    """Return a small kernel file's text without the last newline, or None when it is not there."""
    try:
        # Path.read_text costs three times as much, and the start reads dozens of these.
        with open_file(path, "rb") as file:
            return file.read().decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return None


class ProcFolder:
    """A procfs that stays open: lists its processes and reads their files with the GIL held.

    Args:
        path: Where procfs is mounted.

    Raises:
        SourceUnavailableError: When it cannot be opened.
    """

    def __init__(self, path: Path | str = "/proc") -> None:
        self.path = str(path)
        self._buffer = ctypes.create_string_buffer(_LISTING_SIZE)
        self._view = memoryview(self._buffer).cast("B")
        self._below: list[int] = []  # open files below
        self._fd = _open(self.path)

    def pids(self) -> set[int]:
        """Return the PIDs of all processes."""
        if _LIBC is None:
            names = (path.name for path in Path(self.path).iterdir())
            return {int(name) for name in names if name.isdigit()}
        _LIBC.lseek(self._fd, 0, os.SEEK_SET)
        return self._list(_LIBC, self._fd)

    def list_numbers(self, name: bytes) -> set[int]:
        """Return the folders named by a number in a folder below; empty when it is not there."""
        if _LIBC is None:
            try:
                names = [path.name for path in Path(self.path, name.decode()).iterdir()]
            except OSError:
                return set()
            return {int(name) for name in names if name.isdigit()}
        found = self._list(_LIBC, self._open_below(_LIBC, name))
        self._close_below(_LIBC)
        return found

    def _open_below(self, libc: ctypes.PyDLL, name: bytes) -> int:
        """Open a file below, and return its descriptor; a negative number when it cannot be."""
        # Noted in the same step of the interpreter: a signal handler of the job may raise after it.
        self._below.extend(starmap(libc.openat, [(self._fd, name, _READ_ONLY)]))
        return self._below[-1]

    def _close_below(self, libc: ctypes.PyDLL) -> None:
        any(map(libc.close, map(self._below.pop, [0] * len(self._below))))

    def _list(self, libc: ctypes.PyDLL, fd: int) -> set[int]:
        found: set[int] = set()
        while (count := libc.getdents64(fd, self._buffer, _LISTING_SIZE)) > 0:
            found.update(map(int, _DIRECTORY.findall(self._view[:count])))
        return found

    def read(self, name: bytes) -> bytes | None:
        """Return the first 32 kB of a file below; None when it is not there or forbidden."""
        if _LIBC is None:
            try:
                with Path(self.path, name.decode()).open("rb") as file:
                    return file.read(_LISTING_SIZE) or None
            except OSError:
                return None
        count = _LIBC.read(self._open_below(_LIBC, name), self._buffer, _LISTING_SIZE)
        self._close_below(_LIBC)
        return bytes(self._view[:count]) if count > 0 else None

    def close(self) -> None:
        """Close the descriptors; a second call does nothing."""
        if _LIBC is not None:
            self._close_below(_LIBC)
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the job has closed what it does not know
                os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # not yet opened
            self.close()
