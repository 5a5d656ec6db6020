"""The base of both recorders' spools: a spool file that opens late and fails quietly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.recorders.spool import SpoolWriter

_logger = get_logger(__name__)


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
        self, folder: Path, kind: str, figures: str, snapshot: Callable[[], dict[str, Any]]
    ) -> None:
        self.source: str | None = None
        self._folder = folder
        self._kind = kind
        self._figures = figures
        self._snapshot = snapshot
        self._writer: SpoolWriter | None = None
        self._closed = False

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
        except (OSError, ValueError) as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Write nothing more, and warn unless the session is over and has removed its folder."""
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
