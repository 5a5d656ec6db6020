"""The spool file of a recorder of steps: how its records are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow_perf.recorders.record_spool import RecordSpool
from mlflow_perf.recorders.spool import BLOB

KIND = "steps"
"""First part of the names of these files."""

PIECE = BLOB
"""Kind of the record of some steps of a loop."""


class StepSpool(RecordSpool):
    """Writes the steps of about a second at a time into a spool file.

    Args:
        folder: Spool folder.
        snapshot: Returns everything recorded so far.
    """

    def __init__(self, folder: Path, snapshot: Callable[[], dict[str, Any]]) -> None:
        super().__init__(folder, KIND, "Steps", snapshot)

    def add(self, name: str, rank: int, record: Mapping[str, Any]) -> None:
        """Write some steps of a loop."""
        if self._writer is None:
            self.write_all()
            return
        try:
            piece = json.dumps([name, rank, record], allow_nan=False).encode()
            self._writer.append_blob(PIECE, 0, piece)
        except (OSError, ValueError) as error:
            self.give_up(error)
