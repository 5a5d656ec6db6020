"""Choose paths that a command can contain without quotes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.values import shell_splits


def choose_alias(path: Path, folder: Path) -> Path:
    """Return a path that needs no quotes in a command: the path itself, or one for a link to it.

    Args:
        path: Absolute path of an input.
        folder: Folder of the links; its own path needs no quotes.
    """
    if not shell_splits(str(path)):
        return path
    number = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    return folder / number / re.sub(r"[^\w.\-]", "_", path.name, flags=re.ASCII)


def require_plain_path(path: Path, *, where: str) -> Path:
    """Return the path if it needs no quotes in a command.

    Args:
        path: The path.
        where: Name of the path, to begin the message with.

    Raises:
        PipelineError: It contains a space or another character with a meaning to a shell.
    """
    if shell_splits(str(path)):
        raise PipelineError(
            f"{where}: the path {str(path)!r} contains characters that a shell splits at, but "
            "commands do not quote paths: choose one of letters, digits and ._-/ only."
        )
    return path
