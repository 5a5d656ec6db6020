"""What several commands share: options, several runs in one word, and failing soon."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mlflow_perf.cli import _progress
from mlflow_perf.errors import SettingError
from mlflow_perf.tracking.search import watch

__all__ = ["as_json", "prepare", "split", "write"]


def as_json(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")(
        command
    )


def prepare() -> None:
    """Let MLflow give up while somebody is still watching, and show what takes long.

    Its own defaults wait for 247 s when the connection is refused; what the user set stands.
    """
    watch.set(_progress.watched)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")


def split(text: str) -> list[str]:
    """Return the runs in `A,B,C`; a path that exists is one, commas or not."""
    if Path(text).exists():
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def write(path: str, text: str) -> None:
    """Write a file, or standard output where it is `-`.

    Raises:
        SettingError: When the place cannot be written.
    """
    if path == "-":
        click.echo(text, nl=not text.endswith("\n"))
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{path!r} cannot be written: {error.strerror or error}.") from error
