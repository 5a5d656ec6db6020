"""A process with MLflow imported that forks once for each job, which so starts in milliseconds.

Reads a request (one line of JSON) from standard input; answers with the child's process id, then
with its exit status as `os.waitstatus_to_exitcode` gives it. A job is a script that runs as
`__main__` and ends as an interpreter does: threads are joined, exit handlers run. A job that asks
for it also frees everything, as an interpreter does last.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
import threading
from typing import Any, NoReturn

import jinja2.ext  # noqa: F401
import mlflow
import mlflow.store.tracking.sqlalchemy_store  # the slow part of a first call
import numpy  # noqa: F401
import psutil  # noqa: F401


def become_job(request: dict[str, Any]) -> None:
    """Make this process the job: its folder, environment and standard streams."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    for number, (path, flags) in enumerate(
        (
            (os.devnull, os.O_RDONLY),
            (request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
            (request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        )
    ):
        handle = os.open(path, flags, 0o600)
        os.dup2(handle, number, inheritable=True)
        os.close(handle)
    sys.argv = [request["script"]]
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type] # None: as the environment says


def run(script: str) -> NoReturn:
    """Run a script and end as an interpreter does, less the seconds that freeing MLflow takes."""
    code: Any = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        raise  # the interpreter then ends by the signal
    except BaseException:  # noqa: BLE001 - whatever the job raises
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # noqa: BLE001 - of a stream that the job put there
            code = code or 120
    os._exit(code or 0)


def main() -> tuple[str, bool] | None:
    """Serve requests; returns a script's path, and whether to end it whole, in its child."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a job leaves the pages shared
    answers = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            become_job(request)
            return str(request["script"]), bool(request["whole"])
        print(pid, file=answers, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    return None


if __name__ == "__main__" and (job := main()) is not None:
    if job[1]:
        runpy.run_path(job[0], run_name="__main__")
    else:
        run(job[0])
