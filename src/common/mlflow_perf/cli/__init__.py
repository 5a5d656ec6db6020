"""The command `mlflow-perf`: one file per command, found by its name and loaded when it is called.

A command's file `cli/<name>.py` holds a click command or group named `command`. This module turns
our errors into one line and the exit codes of the contract (0 done, 1 a gate or a pipeline failed,
2 bad usage or input); a command never prints a traceback of ours for bad input.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from typing import Any

import click

from mlflow_perf._version import __version__
from mlflow_perf.cli import _tables
from mlflow_perf.errors import MlflowPerfError, StepFailedError

__all__ = ["main"]

_USAGE_ERROR = 2
_FAILED = 1
_SENTENCE = 200  # characters: more than any first sentence has


class _LazyGroup(click.Group):
    """A group whose commands are the modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the modules that do not start with an underscore."""
        return sorted(
            m.name.replace("_", "-")
            for m in pkgutil.iter_modules(__path__)
            if not m.name.startswith("_")
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its `command`."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = import_module(f"{__name__}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first sentence of its help, which click would cut."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(_SENTENCE)) for name, command in found if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end with one line and a status where the error is one of ours."""
        try:
            return super().invoke(ctx)
        except StepFailedError as error:
            _end(error, _FAILED)
        except MlflowPerfError as error:
            _end(error, _USAGE_ERROR)


def _end(error: MlflowPerfError, status: int) -> None:
    # What it quotes of somebody's file must not steer the terminal.
    lines = [_tables.clean(line) for line in str(error).split("\n")]
    click.echo("mlflow-perf: " + "\n".join(lines), err=True)
    sys.exit(status)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlflow-perf")
def main() -> None:
    """Report what each step of a workflow used, wasted and waited for, in MLflow."""
