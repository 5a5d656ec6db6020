"""Find the local paths of inputs; remote ones are refused."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.values import shell_splits

__all__ = ["choose_alias", "find_local_path", "require_plain_path"]

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]+):")


def find_local_path(text: str, base: Path, *, where: str) -> Path:
    """Return the absolute path of a local input.

    A relative path starts at the pipeline file's folder or, if nothing is there, at the current
    folder.

    Args:
        text: Path or `file:` URI.
        base: Folder of the pipeline file.
        where: Name of the step or option, to begin the message with.

    Raises:
        PipelineError: The path is remote.
    """
    scheme = _SCHEME.match(text)
    if scheme and scheme[1] != "file":
        raise PipelineError(
            f"{where} takes {text} as an input, which is not on this machine: download it and give "
            "its local path, or use --on azureml."
        )
    path = Path(unquote(urlsplit(text).path) if scheme else text).expanduser()
    if not path.is_absolute() and not (base / path).exists():
        base = Path.cwd()
    return (base / path).resolve()


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
