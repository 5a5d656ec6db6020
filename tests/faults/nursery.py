"""Processes with real signals, deaths and exit codes, without an import of MLflow for each.

One process imports MLflow (seconds) and is then forked for each job (milliseconds). It talks over
its standard input and output, a line of JSON each way.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["Job", "Nursery"]


class Job:
    """A process of the nursery.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, nursery: Nursery, pid: int, said: Path, complained: Path) -> None:
        self.pid = pid
        self._nursery = nursery
        self._said, self._complained = said, complained

    def wait(self) -> int:
        """Return the exit code, -n for signal n, once it has ended."""
        return int(self._nursery.ask(wait=self.pid))

    @property
    def output(self) -> str:
        """What it has written so far, standard error included if that has no other file."""
        return self._said.read_text(encoding="utf-8")

    @property
    def errors(self) -> str:
        """What it has written to its standard error so far."""
        return self._complained.read_text(encoding="utf-8")

    @property
    def run_id(self) -> str:
        """The run's id, as the job has written it."""
        found = re.search(r"^[0-9a-f]{32}$", self.output, re.MULTILINE)
        assert found is not None, self.output
        return found[0]

    def kill(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)


class Nursery:
    """Starts processes that have MLflow imported already.

    Args:
        environ: Their environment, less what each `start` adds.
        folder: Where their output goes.
    """

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ,
        )  # fmt: skip

    def ask(self, **question: Any) -> Any:
        """Return the nursery's answer to a question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(
        self,
        function: str,
        *args: Any,
        stdin: str | None = None,
        stderr: str | None = None,
        **environ: str,
    ) -> Job:
        """Start a process that calls `module:function` with plain arguments.

        Args:
            function: What to call.
            args: Its arguments.
            stdin: File for its standard input.
            stderr: File for its standard error; default: that of its output.
            environ: More environment variables.
        """
        self._number += 1
        said = self._folder / f"job-{self._number}.txt"
        complained = Path(stderr or said)
        said.touch()
        complained.touch()
        files = [str(path) for path in (said, complained)]
        pid = self.ask(start=function, args=args, environ=environ, files=files, stdin=stdin)
        return Job(self, int(pid), said, complained)

    def close(self) -> None:
        """End the nursery."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _become(order: dict[str, Any]) -> None:
    """Run a job in this forked process and end it as an interpreter does."""
    given = os.open(order["stdin"] or os.devnull, os.O_RDONLY)
    outputs = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in order["files"]]
    for target, source in enumerate((given, *outputs)):
        os.dup2(source, target)
    os.closerange(3, 256)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the process's end
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.update(order["environ"])
    module, _, name = order["start"].partition(":")
    getattr(import_module(module), name)(*order["args"])


def run_python(folder: str, *argv: str) -> None:
    """Do in a folder what `python` does with these arguments: `-c CODE …`, `-m MODULE …`, a script.

    The process is a fork: MLflow is imported, and no engine or connection is open.
    """
    os.chdir(folder)
    if argv[0] == "-m":
        sys.argv = [*argv[1:]]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [*argv]
        runpy.run_path(argv[0], run_name="__main__")


def _import_all() -> None:
    """Import what the jobs will need, down to what MLflow imports with its first run."""
    import tests.faults.jobs  # noqa: F401
    from mlflow.store.tracking import rest_store, sqlalchemy_store  # noqa: F401
    from mlflow.tracking.context.registry import resolve_tags

    from mlflow_perf.cli import recover, run  # noqa: F401
    from mlflow_perf.model.document import NodeDocument, PerfDocument
    from mlflow_perf.reports import html

    resolve_tags()
    html.render(PerfDocument({0: NodeDocument()}))
    gc.collect()
    gc.freeze()


def _serve() -> None:
    _import_all()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                _become(order)
                return
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
