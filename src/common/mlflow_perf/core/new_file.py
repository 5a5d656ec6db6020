"""Files that appear as a whole: a reader sees the old one or the new one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write a new file; it takes its place after the block, unless that fails.

    A link stays a link. A device or a pipe is written to directly: nothing may take its place.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    place = Path(os.path.realpath(path))
    # Not by `tempfile`, whose files only their owner may read. To ask for the umask would change it
    # for an instant, and with it the files that other threads make then.
    begun = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        yield begun
        begun.replace(place)
    except BaseException:
        with suppress(OSError):
            begun.unlink()
        raise
