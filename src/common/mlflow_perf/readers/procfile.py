"""Reading a file of procfs, sysfs or a cgroup again and again, cheaply. Imports only errors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError

__all__ = ["ProcFile", "read_text"]

_FIRST_SIZE = 8192


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
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
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
        return Path(path).read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return None
