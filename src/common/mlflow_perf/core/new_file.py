"""Files that appear as a whole: a reader sees the old one or the new one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlflow_perf.core.tokens import make_token


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write a new file; it takes its place after the block, unless that fails.

    A link stays a link. A device or a pipe is written to directly: nothing may take its place.

    Raises:
        OSError: When the file cannot be written; it names `path`.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    place = Path(os.path.realpath(path))
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    # Not by `tempfile`, whose files only their owner may read. To ask for the umask would change it
    # for an instant, and with it the files that other threads make then.
    begun = place.with_name(f".{place.name}.{make_token(4)}")
    try:
        yield begun
        begun.replace(place)
    except BaseException as error:
        with suppress(OSError):
            begun.unlink()
        if isinstance(error, OSError) and str(error.filename) == str(begun):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
