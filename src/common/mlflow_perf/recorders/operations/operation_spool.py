"""Operations on their way from the processes of a job to its session.

Imports only errors, spool and the rest of this package.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.operations.codec import json_value
from mlflow_perf.recorders.operations.entry import Count, Times
from mlflow_perf.recorders.operations.keys import json_key, unjson_key
from mlflow_perf.recorders.operations.metrics import OperationMetrics

__all__ = ["OperationSpool", "drain"]

_FILES = "ops"
_TIME, _COUNT = 1, 2
_NAME_TIME, _NAME_COUNT, _BIG_COUNT, _ATTRIBUTE = (spool.BLOB + i for i in range(4))
_EXACT = 2**53
_logger = logging.getLogger(__name__)


class OperationSpool:
    """The journal of a recorder in a spool file: every record is in the file when it was made.

    The file is made at the first record: a process that records nothing has none. A fault of the
    file ends the journal, with one warning, and never reaches who records.

    Args:
        folder: Spool folder.
        recorder: Whose journal this is.
    """

    def __init__(self, folder: Path, recorder: OperationMetrics) -> None:
        self._folder = folder
        self._recorder = recorder
        self._named: list[Times | Count] = []
        self._writer: spool.SpoolWriter | None = None
        self._closed = False

    def add_time(self, times: Times, time_ms: float, timestamp: float) -> None:
        """Write a time."""
        writer = self._writer
        if writer is None:
            self.open()
            return
        try:
            if times.ident or self._name(_NAME_TIME, times):
                writer.append(_TIME, times.ident, time_ms, timestamp)
        except (OSError, ValueError) as error:
            self._give_up(error)

    def add_count(self, count: Count, value: float) -> None:
        """Write an increment."""
        writer = self._writer
        if writer is None:
            self.open()
            return
        try:
            if not (count.ident or self._name(_NAME_COUNT, count)):
                return
            if type(value) is int and abs(value) > _EXACT:
                writer.append_blob(_BIG_COUNT, count.ident, str(value).encode())
            else:
                writer.append(_COUNT, count.ident, value, 1.0 if type(value) is int else 0.0)
        except (OSError, ValueError) as error:
            self._give_up(error)

    def add_attribute(self, name: str, key: Any, value: Any) -> None:
        """Write an attribute."""
        writer = self._writer
        if writer is None:
            self.open()
            return
        try:
            parts = [name, json_key(key), json_value(value)]
            writer.append_blob(_ATTRIBUTE, 0, json.dumps(parts, allow_nan=False).encode())
        except (OSError, ValueError) as error:
            self._give_up(error)

    def open(self) -> None:
        """Make the file, with all that is recorded by now; once closed it is never made again."""
        if self._closed:
            return
        try:
            self._writer = spool.SpoolWriter(self._folder, _FILES, self._snapshot)
            self._recorder.contains(self._writer.source)
        except (OSError, ValueError) as error:
            self._give_up(error)

    def close(self) -> None:
        """Let go of the file; it stays where it is."""
        self._closed = True
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _name(self, kind: int, what: Times | Count) -> bool:
        """Give a time or counter its number in this file.

        Returns:
            False if a new file was begun instead, whose snapshot holds the present record already.
        """
        assert self._writer is not None
        self._named.append(what)
        what.ident = len(self._named)
        parts = json.dumps([what.name, json_key(what.key)])
        self._writer.append_blob(kind, what.ident, parts.encode())
        return what.ident != 0

    def _snapshot(self) -> dict[str, Any]:
        """Return all that is recorded, and begin to number anew: the new file names nothing yet."""
        for what in self._named:
            what.ident = 0
        self._named = []
        return self._recorder.as_dict(max_keys=None)

    def _give_up(self, error: Exception) -> None:
        self.close()
        spool.warn_given_up("Operations", error)


def drain(folder: Path, into: OperationMetrics) -> None:
    """Add what all processes have written to a spool folder so far to a recorder, each once.

    Draining again adds only what new processes have written: a recorder remembers whose figures it
    has. Damaged files are left out with one warning.

    Args:
        folder: The spool folder; may be gone.
        into: The session's recorder.
    """
    for file in spool.read(folder, _FILES):
        _merge(file, into)


def _merge(file: spool.SpoolFile, into: OperationMetrics) -> None:
    try:
        into.merge_from(file.source, lambda: _replay(file))
    except (MlflowPerfError, ValueError, KeyError, TypeError, OverflowError) as error:
        _logger.warning("What process %s recorded cannot be read: %s", file.source, error)


def _replay(file: spool.SpoolFile) -> OperationMetrics:
    recorder = OperationMetrics.from_dict(file.snapshot)
    named: dict[int, tuple[str, Any]] = {}
    for record in file.records:
        if record.kind in (_NAME_TIME, _NAME_COUNT):
            name, key = json.loads(record.blob)
            named[record.ident] = name, unjson_key(key)
        elif record.kind == _TIME:
            recorder.add_past_time(*named[record.ident], record.a, record.b)
        elif record.kind == _COUNT:
            recorder.add_counter(*named[record.ident], int(record.a) if record.b else record.a)
        elif record.kind == _BIG_COUNT:
            recorder.add_counter(*named[record.ident], int(record.blob))
        elif record.kind == _ATTRIBUTE:
            name, key, value = json.loads(record.blob)
            recorder.add_attribute(name, unjson_key(key), value)
    return recorder
