"""Local paths of inputs; what lies elsewhere is refused. Imports `values`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.values import shell_splits

__all__ = ["alias", "local_path", "plain"]

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]+):")


def local_path(text: str, base: Path, *, where: str) -> Path:
    """Return the absolute path of a local input.

    A relative path starts at the pipeline file's folder; where nothing is there, at the current
    folder.

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


def alias(path: Path, folder: Path) -> Path:
    """Return a name for a path that can stand in a command: its own, or that of a link to it.

    Args:
        path: Absolute path of an input.
        folder: Where links stand; its own name is plain.
    """
    if not shell_splits(str(path)):
        return path
    number = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    return folder / number / re.sub(r"[^\w.\-]", "_", path.name, flags=re.ASCII)


def plain(path: Path, *, where: str) -> Path:
    """Return the path if it can stand in a command as it is.

    Raises:
        PipelineError: It holds a space or another character that a shell gives a meaning.
    """
    if shell_splits(str(path)):
        raise PipelineError(
            f"{where}: the path {str(path)!r} holds characters that a shell splits at, and paths "
            "stand unquoted in commands: choose one of letters, digits and ._-/ only."
        )
    return path
