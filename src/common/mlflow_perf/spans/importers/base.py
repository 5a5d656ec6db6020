"""What an importer is: it recognises a source, and puts what is in it into the store.

May import spans.store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from mlflow_perf.spans.store import Store

__all__ = ["HEAD_BYTES", "Importer", "read_head"]

HEAD_BYTES = 1 << 16


@runtime_checkable
class Importer(Protocol):
    """Reads one kind of source.

    Attributes:
        name: Short name for messages and the table of sources: `parsl-monitoring`.
    """

    name: str

    def recognises(self, source: Path, head: bytes) -> bool:
        """Say whether `source` is of this kind.

        Args:
            source: A file or a folder.
            head: The first 64 KiB of a file; empty for a folder.
        """
        ...

    def load(self, source: Path, store: Store) -> None:
        """Put what `source` holds into the store, which keeps what it has already.

        The source is opened for reading only. What is not understood is counted with
        `store.not_read`.

        Raises:
            SpansError: The source cannot be read.
        """
        ...


def read_head(source: Path) -> bytes:
    """Return the first 64 KiB of a file; of a folder, nothing."""
    if not source.is_file():
        return b""
    with source.open("rb") as file:
        return file.read(HEAD_BYTES)
