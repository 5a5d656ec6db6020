"""Reading a file of procfs, sysfs or a cgroup again and again, cheaply. Imports only errors."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError

__all__ = ["ProcFile", "ProcFolder", "is_childless", "read_text"]

_FIRST_SIZE = 8192
_READ_ONLY = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)  # Windows has no such flag


def _gil_keeping_pread() -> Callable[..., int] | None:
    """Return the C library's `pread` called with the GIL held, or None where there is none.

    `os.pread` lets go of the GIL, and a sampler that does so beside a busy main thread waits up to
    a switch interval (5 ms) to get it back and makes that thread pay for two hand-overs. A read of
    procfs never blocks and takes 2 to 30 µs, so holding the GIL over it is the cheaper way.
    """
    try:
        pread = ctypes.PyDLL(None).pread
    except (AttributeError, OSError, TypeError):
        return None
    pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
    pread.restype = ctypes.c_ssize_t
    return pread


_PREAD = _gil_keeping_pread()


class ProcFile:
    """A kernel file kept open, read from its beginning at each call.

    Only for files that the kernel answers at once (procfs, sysfs, cgroups): the read keeps the GIL.

    Args:
        path: The file.

    Raises:
        SourceUnavailableError: When the file cannot be opened.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        try:
            self._fd = os.open(self.path, _READ_ONLY)
        except OSError as error:
            raise SourceUnavailableError(f"{self.path}: {error.strerror}.") from error
        self._resize(_FIRST_SIZE)

    def _resize(self, size: int) -> None:
        self._size = size
        self._buffer = ctypes.create_string_buffer(size)
        self._address = ctypes.addressof(self._buffer)
        self._view = memoryview(self._buffer).cast("B")

    def read(self) -> bytes:
        """Return the file's present content.

        Raises:
            OSError: When the kernel refuses, say because what the file describes has ended.
        """
        if _PREAD is None:
            return self._read_slowly()
        count = _PREAD(self._fd, self._address, self._size, 0)
        while count == self._size:
            self._resize(2 * self._size)
            count = _PREAD(self._fd, self._address, self._size, 0)
        if count < 0:
            # The slow way asks again and raises the error with its number and text.
            return self._read_slowly()
        return bytes(self._view[:count])

    def _read_slowly(self) -> bytes:
        data = os.pread(self._fd, self._size, 0)
        while len(data) == self._size:
            self._resize(2 * self._size)
            data = os.pread(self._fd, self._size, 0)
        return data

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_text(path: Path | str) -> str | None:
    """Return a small kernel file's text without the last newline, or None when it is not there."""
    try:
        # Path.read_text costs three times as much, and the start reads dozens of these.
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            return file.read().decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return None


_ASK_ONLY = getattr(os, "WEXITED", 0) | getattr(os, "WNOHANG", 0) | getattr(os, "WNOWAIT", 0)


def is_childless() -> bool:
    """Return whether this process surely has no child: asked of the kernel, nothing waited for."""
    if _LIBC is None:
        return False
    ctypes.set_errno(0)
    answer = _LIBC.waitid(0, 0, ctypes.create_string_buffer(128), _ASK_ONLY)
    return answer == -1 and ctypes.get_errno() == errno.ECHILD


_DIRECTORY = re.compile(rb"\x04(\d+)\x00")  # type "folder", then the name, in a linux_dirent64
_LISTING_SIZE = 1 << 15


class ProcFolder:
    """A procfs kept open, to list its processes and to read their files, with the GIL kept.

    Python's own `listdir` lets go of the GIL at each entry, and beside a busy main thread waits up
    to 5 ms each time to get it back.

    Args:
        path: Where procfs is mounted.

    Raises:
        SourceUnavailableError: When it cannot be opened.
    """

    def __init__(self, path: Path | str = "/proc") -> None:
        self.path = str(path)
        self._libc = _LIBC
        self._buffer = ctypes.create_string_buffer(_LISTING_SIZE)
        self._view = memoryview(self._buffer).cast("B")
        try:
            self._fd = os.open(self.path, _READ_ONLY)
        except OSError as error:
            raise SourceUnavailableError(f"{self.path}: {error.strerror}.") from error

    def pids(self) -> set[int]:
        """Return the numbers of all processes."""
        if self._libc is None:
            names = [path.name for path in Path(self.path).iterdir()]
            return {int(name) for name in names if name.isdigit()}
        found: set[int] = set()
        self._libc.lseek(self._fd, 0, os.SEEK_SET)
        while (count := self._libc.getdents64(self._fd, self._buffer, _LISTING_SIZE)) > 0:
            found.update(map(int, _DIRECTORY.findall(self._view[:count])))
        return found

    def read(self, name: bytes) -> bytes | None:
        """Return the beginning (32 kB) of a file below; None when it is not there or forbidden."""
        libc = self._libc
        if libc is None:
            return self._read_slowly(name)
        fd = libc.openat(self._fd, name, _READ_ONLY)
        if fd < 0:
            return None
        count = libc.read(fd, self._buffer, _LISTING_SIZE)
        libc.close(fd)
        return bytes(self._view[:count]) if count > 0 else None

    def _read_slowly(self, name: bytes) -> bytes | None:
        try:
            with Path(self.path, name.decode()).open("rb") as file:
                return file.read(_LISTING_SIZE) or None
        except OSError:
            return None

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _gil_keeping_libc() -> ctypes.PyDLL | None:
    try:
        libc = ctypes.PyDLL(None, use_errno=True)
        for name in ("getdents64", "lseek", "openat", "read", "close", "waitid"):
            getattr(libc, name)
    except (AttributeError, OSError, TypeError):
        return None
    libc.getdents64.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    libc.getdents64.restype = ctypes.c_ssize_t
    libc.lseek.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int]
    libc.lseek.restype = ctypes.c_long
    libc.openat.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
    libc.read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    libc.read.restype = ctypes.c_ssize_t
    libc.close.argtypes = [ctypes.c_int]
    return libc


_LIBC = _gil_keeping_libc()
