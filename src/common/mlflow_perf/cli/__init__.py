"""The command `mlflow-perf`: each command is a file of this folder, imported when it is called.

The file `cli/<name>.py` holds a click command or group named `command`. Errors of ours end with one
line and an exit code: 0 done, 1 a gate or a pipeline failed, 2 bad usage, input or output, 141 the
reader of the output has gone.
"""

from __future__ import annotations

import contextlib
import keyword
import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click

from mlflow_perf._version import __version__
from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.uris import first_line, redact_password
from mlflow_perf.errors import MlflowPerfError, StepFailedError

__all__ = ["main"]

_USAGE_ERROR = 2
_FAILED = 1
_READER_GONE = 141  # as of a program that SIGPIPE ends: 1 would say that a gate failed
_SENTENCE = 200  # characters: longer than any first sentence


class _LazyGroup(_options.SuggestingGroup):
    """A group whose commands are the modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the modules that do not start with an underscore."""
        return sorted(
            m.name.rstrip("_").replace("_", "-")
            for m in pkgutil.iter_modules(__path__)
            if not m.name.startswith("_")
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its `command`."""
        if cmd_name not in self.list_commands(ctx):
            return None
        # A module cannot bear the name of a keyword: `import` is in `import_.py`.
        name = cmd_name.replace("-", "_") + "_" * keyword.iskeyword(cmd_name)
        module = import_module(f"{__name__}.{name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first sentence of its help, which click would cut."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(_SENTENCE)) for name, command in found if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the command line; this is where `--help` and `--version` print."""
        with _ending_without_reader():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours becomes one line and an exit code."""
        try:
            with _ending_without_reader():
                return super().invoke(ctx)
        except MlflowPerfError as error:
            # Text that it quotes from a file must not act on the terminal, nor show a password.
            lines = [_tables.clean(redact_password(line)) for line in str(error).split("\n")]
            click.echo("mlflow-perf: " + "\n".join(lines), err=True)
            sys.exit(_FAILED if isinstance(error, StepFailedError) else _USAGE_ERROR)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; what the system or a store refuses becomes one line, too."""
        _tables.print_what_the_locale_has()
        try:
            return super().main(*args, **kwargs)
        except Exception as error:
            # An answer that is not MLflow's is an error of protobuf.
            is_stores = type(error).__module__.startswith(("mlflow.", "google.protobuf."))
            if not isinstance(error, OSError) and not is_stores:
                raise  # a fault of ours
            _tables.drop_output()
            click.echo(f"mlflow-perf: {_tables.clean(first_line(error))}", err=True)
            sys.exit(_USAGE_ERROR)


@contextlib.contextmanager
def _ending_without_reader() -> Iterator[None]:
    """End the command where nobody reads its output any longer; click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        _tables.drop_output(sys.stdout, sys.stderr)  # of `2>&1 | head` neither is read
        sys.exit(_READER_GONE)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlflow-perf")
def main() -> None:
    """Report what each step of a workflow used, wasted and waited for, in MLflow."""
