"""`mlflow-perf mcp`: the read-only tools for agents, over standard input and output."""

from __future__ import annotations

import signal

import click

from mlflow_perf.cli import _options


@click.command()
def command() -> None:
    """Serve search_runs, explain_run, compare_runs, history, advise, fleet and profile to an agent.

    The tools only read, and their answers are bounded, without paths or passwords. They read the
    store that MLFLOW_TRACKING_URI names, with the rights of the user who starts the server. Needs
    the extra `mcp`.
    """
    from mlflow_perf.cli._agent_tools import make_server

    _options.prepare()
    # fastmcp reads its input in a thread, for which the interpreter's own handler of Ctrl-C waits.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    make_server().run(transport="stdio", show_banner=False)
