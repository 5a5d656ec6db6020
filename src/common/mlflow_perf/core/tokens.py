"""Names that nobody else has. A job may have replaced Python's own functions for them."""

from __future__ import annotations

from mlflow_perf.core.originals import os

_MOST_TRIES = 100


def make_token(size: int) -> str:
    """Return random hexadecimal digits, two for each of `size` bytes."""
    return os.urandom(size).hex()


def make_folder(
    suffix: str | None = None,
    prefix: str | None = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - as `tempfile.mkdtemp` names it
) -> str:
    """Make a new folder that only its owner may use, and return its path.

    Arguments are those of `tempfile.mkdtemp`, for which it stands in.

    Raises:
        OSError: When it cannot be made.
    """
    if dir is None:
        from tempfile import gettempdir  # each Python process of a job imports this module

        dir = gettempdir()  # noqa: A001
    for left in reversed(range(_MOST_TRIES)):
        name = f"{prefix or 'tmp'}{make_token(4)}{suffix or ''}"
        path = str(os.path.join(os.path.abspath(dir), name))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not left:
                raise
        else:
            break
    return path
