"""Spool files: each process of a job writes its records into a file that the session reads.

A process writes into a shared memory map of a file of its own. A record is in the file as soon as
it is made and stays there if the process is killed; no thread and no exit handler is needed. A file
holds a snapshot (JSON) and the records that came after it. When the room for records is used up, a
new file with a new snapshot replaces it by a rename, so a reader always finds a whole file.

    magic (8 bytes) | length of the snapshot (8) | snapshot, padded to 8 | records of 24 bytes each

Whoever may write to the file could take its end away, and the process would die of its next record.
So nobody may, and from time to time the writer looks whether somebody did.

A record is two floats, a number and a kind. The kind is written last; zero marks the end of the
records. The bytes of a record of kind `BLOB` and above follow it, padded to whole records.
"""

from __future__ import annotations

import contextlib
import mmap
import stat
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from mlflow_perf.core.descriptors import OwnMap, standard_numbers_taken
from mlflow_perf.core.originals import open_file, os, time
from mlflow_perf.core.plain_json import dumps, loads
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import DocumentError

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "MLFLOW_PERF_SPOOL"
"""Environment variable that names the spool folder to the processes of a job."""

PREFIX = "mlflow-perf-spool-"
"""Start of the name of a spool folder."""

BLOB = 100
"""Kinds from here on carry bytes."""

_MAGIC = b"MLPERF1\n"
_HEAD = struct.Struct("<8sQ")
_RECORD = struct.Struct("<ddII")
_BYTES = struct.Struct("<QQII")
_put = _RECORD.pack_into
SUFFIX = ".spool"
SAMPLING = "profile.json"
"""File in a spool folder that asks the processes of the job to be sampled."""
# Room for 340 records, then four times as much with each new file, up to 21,800: ten thousand
# short-lived processes take 80 MB, and a process with many records makes few snapshots. A snapshot
# takes about 20 ns per byte, so that all of them together cost less than 0.1 µs per record.
_FIRST_ROOM = 8 * 1024
_ROOM = 512 * 1024
_ROOM_PER_SNAPSHOT = 8
_MAX_SIZE = 256 * 1024 * 1024
# A look takes a microsecond, and another thread may run meanwhile.
_LOOK_SEC = 0.1
# On Windows a file that nobody may write to cannot be deleted.
_MODE = 0o600 if sys.platform == "win32" else 0o400
# The C library keeps each value that an environment variable ever had, so a process that opens many
# sessions takes the names of its folders in turn. No process of a session that long ago still runs.
_created: deque[Path] = deque(maxlen=16)
_logger = get_logger(__name__)
_unreadable: set[Path] = set()  # folders that one line has named


class Record(NamedTuple):
    """One record after the snapshot, as its writer gave it; only some kinds have bytes."""

    kind: int
    ident: int
    a: float
    b: float
    blob: bytes = b""


class SpoolFile(NamedTuple):
    """What one process has written.

    Attributes:
        source: Name of the file's writer, unique among all processes.
        snapshot: What the writer had recorded when it began the file.
        records: What the writer has recorded since.
    """

    source: str
    snapshot: dict[str, Any]
    records: list[Record]


class SpoolWriter:
    """Writes the file of this process. Not thread-safe: the caller holds its lock around each call.

    Every method that writes raises OSError where a new file is needed and cannot be made.

    Args:
        folder: Where to write.
        kind: First part of the file's name: which figures the file holds.
        snapshot: Returns everything recorded so far as strict JSON. It is called at the start and
            each time the room is used up.

    Attributes:
        source: Name under which `read` returns the records of this process.
        begun: How many files were begun: each starts with a snapshot of everything.
    """

    def __init__(
        self, folder: Path | str, kind: str, snapshot: Callable[[], dict[str, Any]]
    ) -> None:
        self.source = f"{kind}-{os.getpid()}-{os.urandom(8).hex()}"
        self._path = f"{folder}/{self.source}{SUFFIX}"
        self._begun = f"{folder}/.{self.source}{SUFFIX}"
        self._snapshot = snapshot
        self._file: OwnMap | None = None
        self._map: mmap.mmap | None = None
        self._room = _FIRST_ROOM
        self._at = self._end = 0
        self._looked = 0.0
        self.begun = 0
        self.renew()

    def append(self, kind: int, ident: int, a: float, b: float) -> None:
        """Write a record of two floats."""
        at = self._at
        if time.monotonic() - self._looked > _LOOK_SEC and self.look():
            return
        if at + 24 > self._end:
            self.renew()
            return  # The new snapshot includes this record.
        assert self._map is not None
        _put(self._map, at, a, b, ident, kind)
        self._at = at + 24

    def append_blob(self, kind: int, ident: int, blob: bytes) -> None:
        """Write a record of bytes."""
        size = -(-len(blob) // 24) * 24
        at = self._at
        if time.monotonic() - self._looked > _LOOK_SEC and self.look():
            return
        if at + 24 + size > self._end:
            self.renew()
            return
        assert self._map is not None
        self._map[at + 24 : at + 24 + len(blob)] = blob
        _BYTES.pack_into(self._map, at, len(blob), 0, ident, kind)
        self._at = at + 24 + size

    def look(self) -> bool:
        """Replace the file if somebody has truncated it; return whether that was so."""
        self._looked = time.monotonic()
        if self._file is None or self._file.is_whole():
            return False
        self.renew()
        return True

    def renew(self) -> None:
        """Replace the file by a new one: a snapshot of everything recorded, and room for records.

        Where that fails, the old file stays.
        """
        snapshot = dumps(self._snapshot()).encode()
        start = _HEAD.size + -(-len(snapshot) // 8) * 8
        end = start + max(self._room, _ROOM_PER_SNAPSHOT * len(snapshot))
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        # A map keeps the lowest free number, whatever that of its file is.
        with standard_numbers_taken():
            descriptor = os.open(self._begun, flags, _MODE)
            try:
                # Reserved, not sparse: to write to a sparse map when the disk is full kills us.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, end)
                else:
                    os.write(descriptor, bytes(end))
                file = OwnMap(descriptor, end)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(self._begun)
                raise
            finally:
                os.close(descriptor)
        new = file.data
        new[_HEAD.size : _HEAD.size + len(snapshot)] = snapshot
        _HEAD.pack_into(new, 0, _MAGIC, len(snapshot))
        os.replace(self._begun, self._path)
        self.close()
        self._file, self._map, self._at, self._end = file, new, start, end
        self._room = min(4 * self._room, _ROOM)
        self._looked = time.monotonic()
        self.begun += 1

    def close(self) -> None:
        """Close the file; it stays where it is."""
        if self._file is not None:
            self._file.close()
            self._file = self._map = None


def create(parent: Path | None = None, *, prefix: str = PREFIX) -> Path:
    """Make a spool folder that only this user can enter, by default among the temporary files.

    Args:
        parent: Where.
        prefix: Start of its name.

    Raises:
        OSError: If it cannot be made.
    """
    if len(_created) == _created.maxlen:
        again = _created.popleft()
        with contextlib.suppress(OSError):
            if again.parent == parent and again.name.startswith(prefix):
                again.mkdir(mode=0o700)
                _created.append(again)
                return again
    # Only a session makes folders; each Python process of a job imports this module.
    from pathlib import Path

    from mlflow_perf.core.tokens import make_folder

    folder = Path(make_folder(prefix=prefix, dir=parent))
    _created.append(folder)
    return folder


def remove(folder: Path) -> None:
    """Delete the spool files of a folder, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        with os.scandir(folder) as found:
            names = [one.name for one in found if not one.is_dir(follow_symlinks=False)]
        for name in names:
            if name.endswith(SUFFIX) or name == SAMPLING:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(folder / name)
        os.rmdir(folder)


def read(folder: Path, kind: str) -> Iterator[SpoolFile]:
    """Yield what each process has written so far, whether it still runs or is dead.

    A file that is damaged, too large or not a regular file is skipped; one warning says how many
    were. A file that a killed process had only begun has a hidden name and is not read: the one
    before it is whole.

    Args:
        folder: The spool folder; nothing is yielded when it does not exist.
        kind: Which figures.
    """
    damaged: list[tuple[str, Exception]] = []
    try:
        names = sorted(os.listdir(folder))
        paths = [folder / n for n in names if n.startswith(f"{kind}-") and n.endswith(SUFFIX)]
    except (FileNotFoundError, NotADirectoryError):
        paths = []
    except OSError as error:  # no more descriptors, or no longer the rights
        paths = []
        if folder not in _unreadable:
            _unreadable.add(folder)
            _logger.warning(
                "%s cannot be read now, and what is recorded there is missing in the report: %s",
                folder, error.strerror,
            )  # fmt: skip
    for path in paths:
        try:
            yield read_file(path)
        except (OSError, ValueError, struct.error, RecursionError) as error:
            damaged.append((path.name, error))
    if damaged:
        # Each Python process of a job imports this module, and needs no text for people.
        from mlflow_perf.core.format import format_count

        _logger.warning(
            "%s in %s cannot be read; the report is without what was recorded there: %s: %s",
            format_count(len(damaged), "file"), folder, *damaged[0],
        )  # fmt: skip


def read_file(path: Path) -> SpoolFile:
    """Return what one process has written.

    Raises:
        OSError: When the file cannot be read.
        DocumentError: When it is damaged; also `ValueError`, `struct.error`, `RecursionError`.
    """
    # Without O_NONBLOCK, a pipe in the folder would hold up the session.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open_file(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DocumentError("It is not a regular file.")
        if status.st_size > _MAX_SIZE:
            raise DocumentError(f"It is larger than {_MAX_SIZE} bytes.")
        content = file.read()
    magic, length = _HEAD.unpack_from(content)
    if magic != _MAGIC or length > len(content) - _HEAD.size:
        raise DocumentError("It does not begin as a spool file does.")
    snapshot = loads(content[_HEAD.size : _HEAD.size + length])
    if not isinstance(snapshot, dict):
        raise DocumentError("Its snapshot is not a JSON object.")
    records = []
    at = _HEAD.size + -(-length // 8) * 8
    while at + 24 <= len(content):
        a, b, ident, kind = _RECORD.unpack_from(content, at)
        if kind == 0:
            break
        at += 24
        if kind < BLOB:
            records.append(Record(kind, ident, a, b))
            continue
        size, _, _, _ = _BYTES.unpack_from(content, at - 24)
        if size > len(content) - at:
            raise DocumentError("A record is longer than its file.")
        records.append(Record(kind, ident, 0.0, 0.0, content[at : at + size]))
        at += -(-size // 24) * 24
    return SpoolFile(path.stem, snapshot, records)
