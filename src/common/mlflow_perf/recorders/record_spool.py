"""A recorder's spool file, which opens late and fails quietly, and the base of such recorders."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.originals import os
from mlflow_perf.core.plain_json import dumps
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import RLock
from mlflow_perf.recorders.spool import SpoolWriter

if TYPE_CHECKING:
    from pathlib import Path

_logger = get_logger(__name__)
_alive: weakref.WeakSet[SpooledRecorder] = weakref.WeakSet()


class RecordSpool:
    """Writes each record of a recorder into a spool file. The recorder holds its lock meanwhile.

    The file is made at the first record, so a process that records nothing has none. A fault of the
    file ends the writing with one warning and never reaches the code that records.

    Args:
        folder: Spool folder.
        kind: First part of the file's name.
        figures: What the file holds, for the warning: `Operations`.
        snapshot: Returns everything recorded so far as strict JSON.

    Attributes:
        source: Name of the file for `spool.read`; None before the first record.
    """

    def __init__(
        self, folder: Path | str, kind: str, figures: str, snapshot: Callable[[], dict[str, Any]]
    ) -> None:
        self.source: str | None = None
        self._folder = folder
        self._kind = kind
        self._figures = figures
        self._snapshot = snapshot
        self._writer: SpoolWriter | None = None
        self._closed = False

    def write(self, kind: int, ident: int, content: bytes | list[Any]) -> None:
        """Write a record of bytes, or of a list as JSON."""
        if self._writer is None:
            self.write_all()
            return
        try:
            if isinstance(content, list):
                content = dumps(content).encode()
            self._writer.append_blob(kind, ident, content)
        except Exception as error:  # noqa: BLE001 - never the job's
            self.give_up(error)

    def write_all(self) -> None:
        """Write everything recorded so far, into a new file."""
        if self._closed:
            return
        try:
            if self._writer is None:
                self._writer = SpoolWriter(self._folder, self._kind, self._snapshot)
                self.source = self._writer.source
            else:
                self._writer.renew()
        except Exception as error:  # noqa: BLE001 - never the job's
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Write nothing more, and warn unless the session is over and has removed its folder.

        Raises:
            Exception: The error itself, if a signal handler of the job raised it.
        """
        if is_from_handler(error):
            raise error
        self.close()
        if not isinstance(error, FileNotFoundError):
            _logger.warning(
                "%s of this process can no longer be written to the spool folder, and those from "
                "now on will be missing in the report: %s", self._figures, error,
            )  # fmt: skip

    def close(self) -> None:
        """Write nothing more; the file stays where it is."""
        self._closed = True
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class SpooledRecorder:
    """The base of recorders whose records the session collects from all processes of its job."""

    def __init__(self) -> None:
        # Reentrant: a signal handler or the collector of garbage may enter while its thread is in.
        self._lock = RLock()
        self._spool: Any = None
        self._sources: set[str] = set()
        _alive.add(self)

    def is_empty(self) -> bool:
        """Return whether nothing was recorded."""
        raise NotImplementedError

    def merge(self, other: Any) -> None:
        """Add everything that `other` has recorded."""
        raise NotImplementedError

    def make_spool(self, folder: Path) -> RecordSpool:
        """Return the spool of this recorder."""
        raise NotImplementedError

    def merge_from(self, source: str, load: Callable[[], Any]) -> None:
        """Merge what `load` reads of a process's file, unless its source is included already."""
        own = self._spool is not None and self._spool.source == source
        if own or source in self._sources:
            return
        loaded = load()
        with self._lock:
            self._sources.add(source)
            self.merge(loaded)

    def spool_to(self, folder: Path | None) -> None:
        """Write each record to a file in a spool folder from now on; None ends the writing."""
        with self._lock:
            if self._spool is not None:
                self._spool.close()
                if self._spool.source is not None:
                    self._sources.add(self._spool.source)
            self._spool = None if folder is None else self.make_spool(folder)
            if self._spool is not None and not self.is_empty():
                self._spool.write_all()


def _renew_locks() -> None:
    """Take new locks in a forked child, where another thread may hold the old ones."""
    for recorder in list(_alive):
        recorder._lock = RLock()  # noqa: SLF001 - of a class of this file


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
