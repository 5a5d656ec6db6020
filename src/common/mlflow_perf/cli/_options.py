"""Share what several commands need: options, groups, lists of runs, and output files."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from mlflow_perf.core.uris import redact_password
from mlflow_perf.errors import SettingError

_OBJECTS_PER_COLLECTION = 200_000


class SuggestingGroup(click.Group):
    """A group that suggests the right name for a mistyped command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names.

        Raises:
            SettingError: There is no such command.
        """
        name, known = args[0], self.list_commands(ctx)
        if name in known or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Commands: {', '.join(known)}."
        raise SettingError(f"There is no command {name!r}. {hint}")


def as_json(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")(
        command
    )


def prepare() -> None:
    """Shorten MLflow's timeouts for a waiting user; speed up long searches and show their progress.

    What a search leaves out, and that a run was deleted, is said in a line, once.
    """
    from mlflow_perf.cli import _progress, _tables
    from mlflow_perf.tracking.notices import tell
    from mlflow_perf.tracking.search import watch

    watch.set(_progress.watched)
    said: set[str] = set()

    def say_once(text: str) -> None:  # a command may search more than once
        if text not in said:
            said.add(text)
            click.echo(f"mlflow-perf: {_tables.clean(redact_password(text))}", err=True)

    tell.set(say_once)
    # MLflow makes 20 objects per run that is read, and collections that free nothing take longer
    # than the rest: 12 s of CPU time for 10,000 runs become 5 s.
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    limit_retries()


def limit_retries() -> None:
    """Let MLflow give up soon: its own defaults wait for 247 s; the user's settings are kept."""
    from mlflow_perf.tracking import opened_store

    opened_store.most_attempts = 4  # a second in all
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")


def split(text: str) -> list[str]:
    """Return the runs in `A,B,C`, each once; an existing path with commas is one run."""
    with suppress(OSError):  # a name of eight runs is too long for a file
        if Path(text).exists():
            return [text]
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def write(path: str, text: str) -> None:
    """Write a text to a file, or to standard output for `-`.

    The summary of a step of GitHub Actions keeps what the step wrote there before.

    Raises:
        SettingError: The file cannot be written.
    """
    if path == "-":
        click.echo(text, nl=not text.endswith("\n"))
        return
    try:
        summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
        is_summary = bool(summary) and os.path.realpath(path) == os.path.realpath(summary)
        with Path(path).open("a" if is_summary else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise SettingError(f"{path!r} cannot be written: {error.strerror or error}.") from error
