"""Files through which the processes of a job hand their figures to the session: one per process.

Imports only errors. Each process writes into a shared memory map of a file of its own, so that what
it recorded is in the file at once, and still there when the process is killed: it takes no thread,
no handler at exit and no word between the processes. A file holds a snapshot (JSON) and the records
that came after it; when the room for records is used up, a new file with a new snapshot takes its
place by a rename, so that a file is whole at any instant.

    magic (8 bytes) | length of the snapshot (8) | snapshot, padded to 8 | records of 24 bytes each

A record is two floats, a number and its kind; the kind is written last and is zero where no record
stands. One of kind `BLOB` and above has its bytes in the records that follow it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_perf.errors import DocumentError

__all__ = [
    "BLOB", "VARIABLE", "Record", "SpoolFile", "SpoolWriter", "create", "read", "remove",
    "warn_given_up",
]  # fmt: skip

VARIABLE = "MLFLOW_PERF_SPOOL"
"""Environment variable that names the spool folder to the processes of a job."""

BLOB = 100
"""Kinds from here on carry bytes."""

_MAGIC = b"MLPERF1\n"
_HEAD = struct.Struct("<8sQ")
_RECORD = struct.Struct("<ddII")
_BYTES = struct.Struct("<QQII")
_put = _RECORD.pack_into
_SUFFIX = ".spool"
_FIRST_ROOM = 8 * 1024
_ROOM = 512 * 1024
_ROOM_PER_SNAPSHOT = 8
# Room for 340 records, then four times as much with each new file, up to 21,800: ten thousand
# short-lived processes take 80 MB, and who records much makes few snapshots. One takes about 20 ns
# per byte, so that all of them together cost less than 0.1 µs per record.
_MAX_SIZE = 256 * 1024 * 1024
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One record after the snapshot.

    Attributes:
        kind: What it is; its meaning is the writer's.
        ident: A number of the writer's.
        a: First float.
        b: Second float.
        blob: The bytes of a record of kind `BLOB` and above; empty for the others.
    """

    kind: int
    ident: int
    a: float
    b: float
    blob: bytes = b""


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """What one process has written.

    Attributes:
        source: Name that no other process has or will have.
        snapshot: What the writer's `snapshot` gave when the file was begun.
        records: What came after it.
    """

    source: str
    snapshot: dict[str, Any]
    records: list[Record]


class SpoolWriter:
    """Writes the file of this process. Not thread-safe: its user's lock is held around each call.

    Args:
        folder: Where to write.
        kind: First part of the file's name: which figures these are.
        snapshot: Returns everything recorded so far as strict JSON; asked at the start and each
            time the room is used up. What is recorded while it runs goes into the file after it.

    Raises:
        OSError: If the file cannot be made.
    """

    def __init__(self, folder: Path, kind: str, snapshot: Callable[[], dict[str, Any]]) -> None:
        self._snapshot = snapshot
        self._path = folder / f"{kind}-{os.getpid()}-{os.urandom(8).hex()}{_SUFFIX}"
        self._map: mmap.mmap | None = None
        self._room = _FIRST_ROOM
        self._at = self._end = 0
        self._begin()

    @property
    def source(self) -> str:
        """Name under which `read` gives what this process writes."""
        return self._path.stem

    def append(self, kind: int, ident: int, a: float, b: float) -> None:
        """Write a record of two floats.

        Raises:
            OSError: If the room was used up and no new file can be made.
        """
        at = self._at
        if at + 24 > self._end:
            self._begin()
            return  # The new snapshot holds what this record says.
        assert self._map is not None
        _put(self._map, at, a, b, ident, kind)
        self._at = at + 24

    def append_blob(self, kind: int, ident: int, blob: bytes) -> None:
        """Write a record of bytes.

        Raises:
            OSError: If the room was used up and no new file can be made.
        """
        size = -(-len(blob) // 24) * 24
        at = self._at
        if at + 24 + size > self._end:
            self._begin()
            return
        assert self._map is not None
        self._map[at + 24 : at + 24 + len(blob)] = blob
        _BYTES.pack_into(self._map, at, len(blob), 0, ident, kind)
        self._at = at + 24 + size

    def renew(self) -> None:
        """Put a new file in the place of this one, with everything recorded by now.

        Raises:
            OSError: If it cannot be made; the old one stays.
        """
        self._begin()

    def close(self) -> None:
        """Let go of the file; it stays where it is."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def _begin(self) -> None:
        """Put a new file, with a new snapshot and room for records, in the place of the old one."""
        snapshot = json.dumps(self._snapshot(), allow_nan=False).encode()
        start = _HEAD.size + -(-len(snapshot) // 8) * 8
        end = start + max(self._room, _ROOM_PER_SNAPSHOT * len(snapshot))
        begun = self._path.with_name(f".{self._path.name}")
        new = _mapped(begun, end)
        new[_HEAD.size : _HEAD.size + len(snapshot)] = snapshot
        _HEAD.pack_into(new, 0, _MAGIC, len(snapshot))
        begun.replace(self._path)
        self.close()
        self._map, self._at, self._end = new, start, end
        self._room = min(4 * self._room, _ROOM)


def _mapped(path: Path, size: int) -> mmap.mmap:
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        # Reserved, not sparse: writing to a sparse map when the disk is full kills the process.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.write(descriptor, bytes(size))
        return mmap.mmap(descriptor, size)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def create(parent: Path | None = None) -> Path:
    """Make a spool folder that only this user can enter.

    Args:
        parent: Where; the system's folder for temporary files if not given.

    Raises:
        OSError: If it cannot be made.
    """
    if len(_made) == _made.maxlen:
        again = _made.popleft()
        with contextlib.suppress(OSError):
            if again.parent == parent:
                again.mkdir(mode=0o700)
                _made.append(again)
                return again
    # Here: it takes as long to import as all the rest, and only a session makes folders.
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="mlflow-perf-spool-", dir=parent))
    _made.append(folder)
    return folder


# The names of this process's last folders are taken again in turn: the C library keeps each value
# that an environment variable ever had, and there they stand. So many sessions later, no process of
# the first one writes any more.
_made: deque[Path] = deque(maxlen=16)


def remove(folder: Path) -> None:
    """Delete the spool files of a folder, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.suffix == _SUFFIX and not path.is_dir():
                path.unlink(missing_ok=True)
        folder.rmdir()


def warn_given_up(what: str, error: Exception) -> None:
    """Say, once for each journal, that a process can write no more; not when the session is over.

    Args:
        what: What will be missing: `Operations`.
        error: Why.
    """
    if isinstance(error, FileNotFoundError):
        return  # The session is over, and has removed its folder.
    _logger.warning(
        "%s of this process can no longer be written to the spool folder, and those from now on "
        "will be missing in the report: %s", what, error,
    )  # fmt: skip


def read(folder: Path, kind: str) -> Iterator[SpoolFile]:
    """Yield what each process has written so far, processes that still run and dead ones alike.

    A file that is damaged, too large, a link, or no file at all is left out; one warning tells how
    many.

    Args:
        folder: The spool folder; nothing is yielded when it is not there.
        kind: Which figures.
    """
    damaged = []
    try:
        found = sorted(folder.iterdir())
    except OSError:
        found = []
    for path in found:
        if not path.name.startswith((f"{kind}-", f".{kind}-")) or path.suffix != _SUFFIX:
            continue
        if path.name.startswith("."):
            continue  # A file that a killed process had begun; the one before it is whole.
        try:
            yield _parse(path.stem, _content(path))
        except (OSError, ValueError, struct.error, RecursionError) as error:
            damaged.append((path.name, error))
    if damaged:
        _logger.warning(
            "%d files in %s cannot be read, and what these processes recorded is lost: %s: %s",
            len(damaged), folder, *damaged[0],
        )  # fmt: skip


def _content(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | _NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DocumentError("It is not a regular file.")
        if status.st_size > _MAX_SIZE:
            raise DocumentError(f"It is larger than {_MAX_SIZE} bytes.")
        return file.read()


# A pipe put into the folder must not hold up the session.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)


def _parse(source: str, content: bytes) -> SpoolFile:
    magic, length = _HEAD.unpack_from(content)
    if magic != _MAGIC or length > len(content) - _HEAD.size:
        raise DocumentError("It does not begin as a spool file does.")
    snapshot = json.loads(content[_HEAD.size : _HEAD.size + length])
    if not isinstance(snapshot, dict):
        raise DocumentError("Its snapshot is not a JSON object.")
    start = _HEAD.size + -(-length // 8) * 8
    return SpoolFile(source, snapshot, list(_records(content, start)))


def _records(content: bytes, at: int) -> Iterator[Record]:
    while at + 24 <= len(content):
        a, b, ident, kind = _RECORD.unpack_from(content, at)
        if kind == 0:
            return
        at += 24
        if kind < BLOB:
            yield Record(kind, ident, a, b)
            continue
        (length, _, _, _) = _BYTES.unpack_from(content, at - 24)
        if length > len(content) - at:
            raise DocumentError("A record is longer than its file.")
        yield Record(kind, ident, 0.0, 0.0, content[at : at + length])
        at += -(-length // 24) * 24
