"""The command `mlflow-perf`, also as `python -m mlflow_perf`."""

from __future__ import annotations

import os
import sys

from mlflow_perf.core.starting import end_at_interrupt, raise_at_interrupt

_WRAPPERS = (["run"], ["group"])  # they have more to import, and prepare themselves for signals


def main() -> None:
    """Run the command line.

    `mlflow-perf run` starts its command even where a file on the user's `PYTHONPATH` hides a module
    that we need: unmeasured, with one line that says so.
    """
    end_at_interrupt()
    # PYTHONPYCACHEPREFIX names a folder of the job's: MLflow's thousands of files are none of it.
    sys.pycache_prefix = None
    try:
        from mlflow_perf.cli import main as command_line

        if sys.argv[1:2] == ["run"]:
            import mlflow_perf.cli.run  # noqa: F401
    except Exception as error:  # noqa: BLE001  the module that hides ours may raise anything
        what = f"mlflow-perf cannot start: {type(error).__name__}: {error}".splitlines()[0]
        command = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
        if sys.argv[1:2] != ["run"] or not command:
            sys.exit(what)
        sys.stderr.write(f"{what}. The command runs unmeasured.\n")
        try:
            os.execvp(command[0], command)  # noqa: S606
        except OSError as refused:
            sys.stderr.write(f"mlflow-perf: {command[0]}: {refused.strerror}\n")
            sys.exit(127 if isinstance(refused, FileNotFoundError) else 126)
    if sys.argv[1:2] not in _WRAPPERS:
        raise_at_interrupt()
    command_line()


if __name__ == "__main__":
    main()
