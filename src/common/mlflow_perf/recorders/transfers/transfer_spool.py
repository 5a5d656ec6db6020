"""Transfers on their way from the processes of a job to its session.

Imports only errors, spool and `stats`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.transfers.stats import NixlKVConnectorStats

__all__ = ["TransferSpool", "read"]

_FILES = "kv"
_COUNT = 1
_TRANSFER = spool.BLOB
_FIGURES = struct.Struct("<dddd")
_logger = logging.getLogger(__name__)


class TransferSpool:
    """The journal of statistics in a spool file, made at the first record.

    A fault of the file ends the journal, with one warning, and never reaches who records.

    Args:
        folder: Spool folder.
        name: Name of the statistics.
        stats: Whose journal this is.
    """

    def __init__(self, folder: Path, name: str, stats: NixlKVConnectorStats) -> None:
        self._folder = folder
        self._name = name
        self._stats = stats
        self._writer: spool.SpoolWriter | None = None

    def add_transfer(self, figures: tuple[float, ...]) -> None:
        """Write a successful transfer."""
        if self._writer is None:
            self.add_all()
            return
        try:
            self._writer.append_blob(_TRANSFER, 0, _FIGURES.pack(*figures))
        except (OSError, ValueError) as error:
            self._give_up(error)

    def add_count(self, place: int) -> None:
        """Write an event."""
        if self._writer is None:
            self.add_all()
            return
        try:
            self._writer.append(_COUNT, place, 0.0, 0.0)
        except (OSError, ValueError) as error:
            self._give_up(error)

    def add_all(self) -> None:
        """Write everything anew."""
        try:
            if self._writer is None:
                self._writer = spool.SpoolWriter(self._folder, _FILES, self._snapshot)
            else:
                self._writer.renew()
        except (OSError, ValueError) as error:
            self._give_up(error)

    @property
    def source(self) -> str | None:
        """Name of the file; None before the first record."""
        return None if self._writer is None else self._writer.source

    def _snapshot(self) -> dict[str, Any]:
        return {"name": self._name, "stats": self._stats.as_dict()}

    def _give_up(self, error: Exception) -> None:
        self._stats.attach(None)
        spool.warn_given_up("Transfers", error)


def read(folder: Path) -> Iterator[tuple[str, str, NixlKVConnectorStats]]:
    """Yield the file's name, the statistics' name and the statistics that each process has written.

    What cannot be read is left out with a warning.
    """
    for file in spool.read(folder, _FILES):
        stats = _replay(file)
        if stats is not None:
            yield file.source, str(file.snapshot.get("name")), stats


def _replay(file: spool.SpoolFile) -> NixlKVConnectorStats | None:
    try:
        stats = NixlKVConnectorStats(file.snapshot["stats"])
        for record in file.records:
            if record.kind == _TRANSFER:
                stats.record_figures(_FIGURES.unpack(record.blob))
            elif record.kind == _COUNT:
                stats.record_count(record.ident)
    except (MlflowPerfError, KeyError, TypeError, ValueError, IndexError, struct.error) as error:
        _logger.warning("What process %s transferred cannot be read: %s", file.source, error)
        return None
    return stats
