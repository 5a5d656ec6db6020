"""The spool file of statistics of transfers: how its records are written."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow_perf.recorders.record_spool import RecordSpool
from mlflow_perf.recorders.spool import BLOB

KIND = "kv"
"""First part of the names of these files."""

COUNT = 1
"""Kind of the record of an event."""

TRANSFER = BLOB
"""Kind of the record of a successful transfer."""

FIGURES = struct.Struct("<dddd")
"""The bytes of a transfer: its four figures."""


class TransferSpool(RecordSpool):
    """Writes each transfer and event into a spool file.

    Args:
        folder: Spool folder.
        name: Name of the statistics.
        stats: Returns everything recorded so far.
    """

    def __init__(self, folder: Path, name: str, stats: Callable[[], dict[str, Any]]) -> None:
        super().__init__(folder, KIND, "Transfers", lambda: {"name": name, "stats": stats()})

    def add_transfer(self, figures: tuple[float, ...]) -> None:
        """Write a successful transfer."""
        if self._writer is None:
            self.write_all()
            return
        try:
            self._writer.append_blob(TRANSFER, 0, FIGURES.pack(*figures))
        except (OSError, ValueError) as error:
            self.give_up(error)

    def add_count(self, place: int) -> None:
        """Write an event."""
        if self._writer is None:
            self.write_all()
            return
        try:
            self._writer.append(COUNT, place, 0.0, 0.0)
        except (OSError, ValueError) as error:
            self.give_up(error)
