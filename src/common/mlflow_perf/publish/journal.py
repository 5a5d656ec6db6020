"""The journal: what a job has reported so far, on local disk, so that no crash loses it.

One file per recording: a line that says what it is and where it goes, then lines of rows as they
come. Every so often the file is replaced by one that starts with a snapshot, so that a job of a
month has a journal of bounded size. `recovery` reads it. Imports delivery and what stands below.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow_perf.core import settings
from mlflow_perf.model.document import to_json
from mlflow_perf.node.exit_cause import boot_id
from mlflow_perf.tracking.delivery import Delivery

__all__ = [
    "BEGUN",
    "FORMAT",
    "SUFFIX",
    "Journal",
    "live",
    "lock",
    "state_folder",
]

FORMAT = "mlflow-perf-journal/1"
SUFFIX = ".journal"
BEGUN = ".new"  # of a file that is about to take a journal's place
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)

# A killed job loses at most what came after the last write, a dead machine what came after the
# last sync; the contract allows 10 s for both.
_WRITE_EVERY_SEC = 4.0
_SYNCS_EVERY_WRITES = 2

_log = logging.getLogger(__name__)

live: set[str] = set()
"""Names of the journals of this process: closing another descriptor of one would unlock it."""

Snapshot = Callable[[], Mapping[str, Any]]
"""Returns what to start a shortened journal with: plain data."""


def state_folder() -> Path:
    """Return the folder of the journals: `MLFLOW_PERF_DIR`, else below the user's state folder."""
    given = settings.setting("dir")
    if given is not None:
        return Path(given)
    home = os.environ.get("XDG_STATE_HOME")
    try:
        base = Path(home) if home else Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a home, as in some containers
        base = Path(tempfile.gettempdir())
    return base / "mlflow-perf"


def lock(handle: int) -> bool:
    """Take the lock on an open journal that its writer holds as long as it lives.

    Returns:
        Whether it was free. The lock is the process's own: a forked child does not inherit it, and
        it is gone with the process, however that ends.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Journal:
    """Writes one recording's journal, in a thread of its own.

    A fault of the disk costs one warning, never the recording. While it lasts, each flush tries
    again, and what comes of it starts with a snapshot.

    Args:
        delivery: Where the figures go; its header is the journal's first line.
        facts: More for that line: columns that are counters, say.
        folder: Where the journal lies; made when it is not there.
        snapshot: What to start a shortened journal with.
        max_rows: Rows after which the journal is shortened.
    """

    def __init__(
        self,
        delivery: Delivery,
        facts: Mapping[str, Any],
        *,
        folder: Path,
        snapshot: Snapshot | None = None,
        max_rows: int = 1000,
    ) -> None:
        self._pid = os.getpid()
        self._snapshot = snapshot
        self._max_rows = max_rows
        self._rows_written = 0
        self._pending: list[dict[str, float]] = []
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._handle = -1
        self._size = 0
        self._broken = self._warned = self._final = self._named = False
        self._head = {
            "format": FORMAT,
            "pid": self._pid,
            "boot_id": boot_id(),
            "delivery": delivery.header(),
            "node": delivery.document.node,
            "component": delivery.document.component,
            **facts,
        }
        self.path = (
            folder / f"{_plain(delivery.run_name)}-{self._pid}-{secrets.token_hex(6)}{SUFFIX}"
        )
        self._thread: threading.Thread | None = None
        live.add(self.path.name)
        _journals.add(self)
        with self._one_warning():
            self._replace([self._head])

    @property
    def alive(self) -> bool:
        """Whether the journal is on disk and written, in this process."""
        return self._handle >= 0 and not self._broken and self._pid == os.getpid()

    @property
    def target(self) -> dict[str, Any]:
        """Where its figures go, as `RunTarget.header` says it."""
        names = ("run_id", "own_run", "tracking_uri", "experiment_id", "experiment_name")
        return {name: self._head["delivery"][name] for name in names}

    def start(self) -> None:
        """Start writing what is appended, every few seconds."""
        if self._pid != os.getpid():
            return
        thread = threading.Thread(target=self._run, name="mlflow-perf-journal", daemon=True)
        with self._one_warning():
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        writes = 0
        while not self._ended.wait(_WRITE_EVERY_SEC):
            writes += 1
            self.flush(sync=writes % _SYNCS_EVERY_WRITES == 0)

    def append(self, report: dict[str, float]) -> None:
        """Take one report; it is written with the next flush. Never blocks."""
        if len(self._pending) <= self._max_rows:
            self._pending.append(report)

    def flush(self, *, sync: bool = False) -> None:
        """Write what was appended since the last flush.

        Args:
            sync: Wait until the disk has it.
        """
        with self._writing, self._one_warning():
            if self._pid != os.getpid() or self._final:
                return
            rows, self._pending = self._pending, []
            self._rows_written += len(rows)
            if self._broken or self._rows_written > self._max_rows:
                self._shorten(rows)
            elif rows:
                self._write([{"rows": rows}])
            if sync:
                self._sync()

    def _shorten(self, rows: list[dict[str, float]]) -> None:
        start = {"rows": rows} if self._snapshot is None else {"snapshot": self._snapshot()}
        self._replace([self._head, start], sync=True)
        self._rows_written = 0

    def _sync(self) -> None:
        if not self.path.exists():  # who tidies up /tmp, say, may take it away
            self._shorten([])
        os.fsync(self._handle)
        if not self._named:
            self._sync_name()

    def _sync_name(self) -> None:
        """Let the disk have the file's name too: without it the file is gone with the power."""
        self._named = True
        with contextlib.suppress(OSError):  # Windows and some network file systems cannot
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _write(self, lines: list[Any]) -> None:
        data = "".join(to_json(line) + "\n" for line in lines).encode()
        written = os.write(self._handle, data)
        if written < len(data):
            raise OSError(errno.ENOSPC, "the disk took only a part of a line")
        self._size += written

    def _replace(self, lines: list[Any], *, sync: bool = False) -> None:
        """Put a file with these lines in the journal's place, whole or not at all.

        Args:
            lines: What is in it.
            sync: Whether the disk is to have it before it takes the place of the old one; else a
                power cut could leave an empty file where a long one was.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self.path.with_suffix(BEGUN)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | _NOFOLLOW
        old = self._handle, self._size
        self._handle, self._size = os.open(fresh, flags, 0o600), 0
        try:
            lock(self._handle)
            self._write(lines)
            if sync:
                os.fsync(self._handle)
            fresh.replace(self.path)
        except BaseException:
            os.close(self._handle)
            self._handle, self._size = old
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise
        if old[0] >= 0:
            os.close(old[0])
        self._broken = self._named = False
        if sync:
            self._sync_name()

    @contextlib.contextmanager
    def _one_warning(self) -> Any:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            self._broken = True
            if not self._warned:
                self._warned = True
                _log.warning(
                    "The crash-safe journal %s cannot be written (%s); while that lasts, what a "
                    "kill of this job would cost is more than the last seconds.",
                    self.path,
                    error,
                )
            # Half a line would be the end of all that comes after it.
            with contextlib.suppress(OSError):
                if self._handle >= 0:
                    os.ftruncate(self._handle, self._size)

    def redirect(self, delivery: Delivery) -> None:
        """Note that the figures go elsewhere than was known at the start: to a run made since."""
        with self._writing, self._one_warning():
            self._head["delivery"] = delivery.header()
            if self.alive and not self._final:
                self._write([{"delivery": delivery.header()}])

    def secure(self, delivery: Delivery) -> bool:
        """Put a finished delivery into the journal, for `recovery`, should it not be sent.

        Returns:
            Whether it is on disk.
        """
        self._stop()
        with self._writing, self._one_warning():
            if self._pid != os.getpid():
                return False
            final = {"final": delivery.document.as_dict(), "delivery": delivery.header()}
            self._replace([self._head, final], sync=True)
            self._final = True
        return self._final and not self._broken

    def keep(self, delivery: Delivery) -> bool:
        """End the journal with a finished delivery that could not be sent, for `recovery`.

        Returns:
            Whether it is on disk.
        """
        kept = self.secure(delivery)
        with self._writing:
            self._close()
        return kept

    def remove(self) -> None:
        """End the journal: all that it holds was logged."""
        self._stop()
        with self._writing:
            if self._pid == os.getpid():
                with contextlib.suppress(OSError):
                    self.path.unlink(missing_ok=True)
            self._close()

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        self._pending = []
        live.discard(self.path.name)
        if handle >= 0:
            with contextlib.suppress(OSError):
                os.close(handle)

    def leave_child(self) -> None:
        """Let go of the file in a forked child: it is its parent's."""
        self._writing = threading.Lock()  # another thread of the parent may have held it
        self._close()


_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _in_child() -> None:
    for journal in list(_journals):
        journal.leave_child()
    live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _plain(name: str | None) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name or "job")[:60].lstrip(".") or "job"
