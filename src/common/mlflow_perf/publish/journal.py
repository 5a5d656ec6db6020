"""The journal of a recording: its reports on local disk, so that no crash loses them.

Each recording has one file. The first line says what the file is and where the report goes; the
next lines hold the samples as they come. From time to time a snapshot replaces the file, so that a
job of a month has a journal of bounded size. The file is there before the run is created, so that a
process killed between the two leaves no run RUNNING for ever. `recovery` reads it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow_perf.core.descriptors import OwnDescriptor
from mlflow_perf.core.file_patience import find_patience, patiently
from mlflow_perf.core.json_io import to_json
from mlflow_perf.core.originals import os, time
from mlflow_perf.core.own_cost import as_own
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Event, Lock, Thread
from mlflow_perf.core.tokens import make_token
from mlflow_perf.node.exit_cause import boot_id
from mlflow_perf.node.step_notes import find_stop_note
from mlflow_perf.publish.journal_facts import JournalFacts
from mlflow_perf.publish.journal_file import lock
from mlflow_perf.tracking.delivery import Delivery

FORMAT = "mlflow-perf-journal/1"
SUFFIX = ".journal"
BEGUN = ".new"  # suffix of a file that is about to replace a journal
REMOVED = "removed"  # key in the first line of a journal that its job could not delete
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)

# A killed job loses at most the samples since the last write, a dead machine at most those since
# the last sync. The contract allows 10 s for both.
_WRITE_EVERY_SEC = 4.0
_SYNC_EVERY_WRITES = 2
_LEAST_SEC = 1.0  # a block that ends sooner needs no thread: its end writes or removes everything

_log = get_logger(__name__)

live: set[str] = set()
"""Names of this process's journals. Closing any descriptor of such a file would unlock it."""

Snapshot = Callable[[], Mapping[str, Any]]
"""Returns the plain data with which a shortened journal starts."""


class Journal:
    """Writes the journal of one recording, in a thread of its own.

    An error of the disk costs one warning. While it lasts, each flush begins with a snapshot. A
    network's file system that does not answer holds up no caller for long.

    Args:
        delivery: Where the report goes. Its header is part of the first line.
        facts: The rest of the first line.
        folder: Folder of the journal; it is created if need be.
        snapshot: Returns the start of a shortened journal.
        max_rows: Number of rows after which the journal is shortened.
    """

    def __init__(
        self,
        delivery: Delivery,
        facts: JournalFacts,
        *,
        folder: Path,
        snapshot: Snapshot | None = None,
        max_rows: int = 1000,
    ) -> None:
        self._pid, self._root = os.getpid(), os.stat("/")
        self._delivery = delivery
        self._snapshot = snapshot
        self._max_rows = max_rows
        self._rows_written = 0
        self._pending: list[dict[str, float]] = []
        self._writing = Lock()
        self._ended = Event()
        self._file: OwnDescriptor | None = None
        self._size = 0
        self._broken = self._warned = self._final = self._named = False
        self._is_removed = False
        self._thread: Thread | None = None
        self._writes_from = math.inf
        self._head = {
            "format": FORMAT,
            "pid": self._pid,
            "boot_id": boot_id(),
            "stop_note": find_stop_note(),
            "delivery": delivery.header(),
            "node": delivery.document.node,
            "component": delivery.document.component,
            **facts.list_known(),
        }
        job = re.sub(r"[^A-Za-z0-9_.-]", "_", delivery.run.run_name or "job")[:60].lstrip(".")
        self.path = folder / f"{job or 'job'}-{self._pid}-{make_token(6)}{SUFFIX}"
        self.patience = find_patience(folder)
        try:
            live.add(self.path.name)
            _journals.add(self)
            self._open()
        except BaseException:  # a signal handler of the job raised: nobody has this object
            self.remove()
            raise

    @patiently(None)
    def _open(self) -> None:
        with self._writing, self._warn_once():
            self._replace([self._head])

    @property
    def alive(self) -> bool:
        """Whether the journal is on disk and this process writes it."""
        is_open = self._file is not None and self._file.is_ours()
        return is_open and not self._broken and self._pid == os.getpid()

    @patiently(None)
    def start(self, facts: JournalFacts | None = None) -> None:
        """Start to write the appended reports every few seconds, because the block has begun.

        Args:
            facts: What has become known since the journal was opened.
        """
        if self._pid != os.getpid():
            return
        if facts is not None:
            with self._writing, self._warn_once():
                begun, header = facts.list_known(), self._delivery.header()
                self._head |= {**begun, "delivery": header}
                self._write([{"begun": begun, "delivery": header}])
        self._writes_from = time.monotonic() + _LEAST_SEC

    @as_own()
    def _run(self) -> None:
        writes = 0
        while not self._ended.wait(_WRITE_EVERY_SEC):
            writes += 1
            self._flush(sync=writes % _SYNC_EVERY_WRITES == 0)

    def append(self, report: dict[str, float]) -> None:
        """Take one report, which the next flush writes. Never blocks."""
        if len(self._pending) <= self._max_rows:
            self._pending.append(report)
        if self._thread is None and time.monotonic() >= self._writes_from:
            thread = Thread(self._run, name="mlflow-perf-journal")
            with self._warn_once():
                thread.start()
                self._thread = thread

    @patiently(None)
    def flush(self, *, sync: bool = False) -> None:
        """Write the reports since the last flush; wait until they are on the disk if `sync`."""
        self._flush(sync=sync)

    def _flush(self, *, sync: bool) -> None:
        with self._writing, self._warn_once():
            if self._pid != os.getpid() or self._final:
                return
            rows, self._pending = self._pending, []
            self._rows_written += len(rows)
            if self._broken or self._rows_written > self._max_rows:
                self._shorten(rows)
            elif rows:
                self._write([{"rows": rows}])
            if sync:
                if not self._is_linked():  # somebody cleaned up the folder
                    self._shorten([])
                if self._file is not None:
                    os.fsync(self._file.number)
                if not self._named:
                    self._sync_name()

    def _shorten(self, rows: list[dict[str, float]]) -> None:
        start = {"rows": rows} if self._snapshot is None else {"snapshot": self._snapshot()}
        self._replace([self._head, start], sync=True)
        self._rows_written = 0

    def _is_linked(self) -> bool:
        """Return whether the open file has its name; a folder may be hidden from the job by now."""
        file = self._file
        return file is not None and file.is_ours() and os.fstat(file.number).st_nlink > 0

    def _sync_name(self) -> None:
        """Write the file's name to the disk too: without it a power cut loses the file."""
        self._named = True
        with contextlib.suppress(OSError):  # Windows and some network file systems cannot
            folder = OwnDescriptor(os.open, self.path.parent, os.O_RDONLY)
            os.fsync(folder.number)
            folder.close()

    def _write(self, lines: list[Any]) -> None:
        data = "".join(to_json(line) + "\n" for line in lines).encode()
        if self._file is None:
            raise OSError(errno.EBADF, "it is not open")
        self._file.check()  # the job may have closed what it does not know
        written = os.write(self._file.number, data)
        if written < len(data):
            raise OSError(errno.ENOSPC, "the disk took only a part of a line")
        self._size += written

    def _replace(self, lines: list[Any], *, sync: bool = False) -> None:
        """Replace the journal by a file with these lines, completely or not at all.

        Args:
            lines: The new content.
            sync: Whether to write the new file to the disk before it replaces the old one.
                Otherwise a power cut could leave an empty file where a long one was.
        """
        if not os.path.samestat(os.stat("/"), self._root):
            raise OSError(errno.EXDEV, "the job has changed its root folder")
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self.path.with_suffix(BEGUN)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | _NOFOLLOW
        old = self._file, self._size
        try:
            self._file, self._size = OwnDescriptor(os.open, fresh, flags, 0o600), 0
            lock(self._file.number)
            self._write(lines)
            if sync:
                os.fsync(self._file.number)
            os.replace(fresh, self.path)
        except BaseException:
            if self._file is not None and self._file is not old[0]:
                self._file.close()
            self._file, self._size = old
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise
        if old[0] is not None:
            old[0].close()
        self._broken = self._named = False
        if sync:
            self._sync_name()

    @contextlib.contextmanager
    def _warn_once(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            self._broken = True
            if not self._warned:
                self._warned = True
                _log.warning(
                    "The crash-safe journal %s cannot be written (%s). While that lasts, a kill of "
                    "this job would lose more than the last seconds.", self.path, error,
                )  # fmt: skip
            # Half a line would make all lines after it unreadable.
            with contextlib.suppress(OSError):
                if self._file is not None and self._file.is_ours():
                    os.ftruncate(self._file.number, self._size)

    @patiently(None)
    def note_run(self) -> None:
        """Write into the journal that the report goes to a new run."""
        with self._writing, self._warn_once():
            header = self._delivery.header()
            if header == self._head["delivery"]:
                return
            self._head["delivery"] = header
            if self.alive and not self._final:
                self._write([{"delivery": header}])

    @patiently(None)
    def note_end(self, status: str, cause: str | None) -> None:
        """Write the last reports, and how the block ended whose report is to be sent later."""
        self._flush(sync=False)
        with self._writing, self._warn_once():
            self._head["ended"] = [status, cause or ""]
            if self.alive and not self._final:
                self._write([{"ended": self._head["ended"]}])

    @patiently(False)
    def secure(self, delivery: Delivery, *, held: bool = False, unsent: str = "") -> bool:
        """Put a finished report into the journal, in case that it cannot be sent.

        Args:
            delivery: The report.
            held: Whether another program is to send it, so that nothing went wrong.
            unsent: Why it was not sent, once that is known.

        Returns:
            Whether it is on disk.
        """
        self._stop()
        with self._writing, self._warn_once():
            # It may have been sent, and removed, at this very moment.
            if self._pid != os.getpid() or self._is_removed:
                return False
            report, header = delivery.document.as_dict(), delivery.header()
            final: dict[str, Any] = {"final": report, "delivery": header}
            final |= {"held": True} if held else {"unsent": unsent} if unsent else {}
            try:
                self._replace([self._head, final], sync=True)
            except OSError:  # the job may have given up its rights; the open file still takes it
                if not self._is_linked():
                    raise
                self._write([final])
                self._broken = False
            self._final = True
        # Where only the reason could not be added, the report itself is still there.
        return self._final and (not self._broken or self._is_linked())

    def keep(
        self,
        delivery: Delivery,
        *,
        held: bool = False,
        unsent: str = "",
        figures_sent: bool = False,
    ) -> bool:
        """End the journal with a report that was not sent, as `secure`; return if it is on disk.

        Args:
            delivery: The report.
            held: As for `secure`.
            unsent: As for `secure`.
            figures_sent: Whether MLflow has the figures. A journal that does not take the rest is
                removed then: `recover` would take the job that wrote it for a killed one.
        """
        kept = self.secure(delivery, held=held, unsent=unsent)
        if kept or not figures_sent:
            self.leave()
        else:
            self.remove()
        return kept

    @patiently(None)
    def leave(self) -> None:
        """End the journal as it is now, for `recover`."""
        self._stop()
        with self._writing:
            self._close()

    @patiently(None)
    def remove(self) -> None:
        """End the journal and delete its file, because everything in it was sent.

        Where the job may no longer do so (`os.setuid`, `os.chroot`), `recover` deletes it.
        """
        self._stop()
        with self._writing:
            self._is_removed = True
            if self._pid == os.getpid():
                try:
                    os.unlink(self.path)
                except OSError:
                    self._empty()
            self._close()

    def _empty(self) -> None:
        """Leave nothing to send in the open file, which can be written where its folder cannot."""
        with contextlib.suppress(OSError):
            if self._file is not None and self._is_linked():
                os.ftruncate(self._file.number, 0)
                self._write([{**self._head, REMOVED: True}])

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _close(self) -> None:
        file, self._file = self._file, None
        self._pending = []
        live.discard(self.path.name)
        if file is not None:
            file.close()

    def leave_child(self) -> None:
        """Close the file in a forked child, because it belongs to the parent."""
        self._writing = Lock()  # another thread of the parent may have held it
        self._close()


_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _leave_in_child() -> None:
    for journal in list(_journals):
        journal.leave_child()
    live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_in_child)
