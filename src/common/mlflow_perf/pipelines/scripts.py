"""Run a pipeline script or notebook as its author would, with a stand-in for Azure ML's client."""

from __future__ import annotations

import atexit
import faulthandler
import json
import multiprocessing.util
import os
import re
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, process, thread
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from mlflow_perf.core.extras import needing
from mlflow_perf.core.foreign_files import read_foreign
from mlflow_perf.core.safe_log import go_to_end
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.stand_in import Record, ScriptEndedError, standing_in

_CELL_MAGIC = re.compile(r"%%(\w+)[ \t]*(.*)")
_MOST_MB = 64
_PROCESS = multiprocessing.Process.__module__
_PATIENCE_SEC = 10.0
_POLL_SEC = 0.02
_SDK_V1 = ("core", "pipeline", "train", "widgets", "data", "dataprep", "opendatasets")


class ForkEndedError(SystemExit):
    """A process that the script has forked ends: it passes through all of ours to its exit."""


def run_script(path: Path, record: Record, *, name: str, arguments: Sequence[str]) -> ModuleType:
    """Run a `.py` or `.ipynb` file, and return its module.

    A notebook runs in its own folder, as Jupyter does it. A script runs in the current folder; if
    it does not find a file there, it runs once more in its own.

    Args:
        path: The file.
        record: Records the calls of the script to its client.
        name: The module's `__name__`; `__main__` runs what is guarded by it.
        arguments: `sys.argv[1:]` of the script.

    Raises:
        PipelineError: The file fails, or is refused.
        MissingDependencyError: azure-ai-ml is not installed.
    """
    folders = [Path.cwd(), path.resolve().parent]
    folders = folders[1:] if path.suffix == ".ipynb" else folders
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    for folder in folders:
        try:
            with _as_started(path, folder, [str(path), *arguments]):
                _execute(path, module, record)
        except ForkEndedError:
            raise
        except ScriptEndedError as end:
            record.sources.say(f"{path} {end}, which only Azure ML has: the script ends there")
            break
        # The file is the user's own code: whatever it raises is reported as an error of that file.
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code in (None, 0) and name == "__main__":
                break
            if record.was_used_elsewhere:  # told below
                break
            if record.jobs:
                # What the script does with the result of its job is of no use before that has run.
                text = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")
                where = f"{path}{_find_line(path, error)}"
                record.sources.say(f"{where} ended with {text}. Only what it had submitted runs")
                break
            is_missing = "No such file" in str(error) or isinstance(error, FileNotFoundError)
            if is_missing and folder not in (folders[-1],):
                continue
            raise _explain(path, error, record, arguments) from error
        else:
            break
    if record.was_used_elsewhere:
        raise PipelineError(
            f"{path} submits jobs from processes that it starts, where nobody sees them: let it "
            "submit them itself, or from threads."
        )
    return module


@contextmanager
def _as_started(path: Path, folder: Path, argv: list[str]) -> Iterator[None]:
    """Give a script the folder, the arguments and the import path that Python would give it."""
    before = Path.cwd()
    is_timed = not hasattr(signal, "setitimer") or signal.getitimer(signal.ITIMER_REAL)[0] > 0
    with mock.patch.object(sys, "argv", argv):
        # What the steps are made of may be imported later: the folder stays on the path.
        sys.path.insert(0, str(path.resolve().parent))
        if str(folder) not in sys.path:
            sys.path.insert(1, str(folder))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
            # What the script leaves armed would end this process in the middle of its jobs.
            faulthandler.cancel_dump_traceback_later()
            if not is_timed:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            for standard in (1, 2):
                with suppress(OSError):
                    go_to_end(standard)


def _execute(path: Path, module: ModuleType, record: Record) -> None:
    with needing("azure-ai-ml", "pipelines"):
        import azure.ai.ml  # noqa: F401 - its absence is an error of its own
    try:
        # A relative path would start at the folder that the script has been given.
        text = read_foreign(Path(str(module.__file__)), most_mb=_MOST_MB).decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise PipelineError(f"{path} cannot be read: {reason}.") from error
    if path.suffix == ".ipynb":
        module.__dict__.update(display=lambda *_: None, get_ipython=lambda: None)
        try:
            found = json.loads(text)["cells"]
            cells = ["".join(c.get("source", "")) for c in found if c.get("cell_type") == "code"]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise PipelineError(f"{path} is no notebook: {error}.") from error
    else:
        cells = [text]
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        with (
            standing_in(record), _waiting_for_threads(record), ending_forks()
        ):  # fmt: skip
            for number, text in enumerate(cells, 1):
                if path.suffix == ".ipynb" and (text := _run_magic(text, module)) == "":
                    continue
                shown = f"{path}, cell {number}" if path.suffix == ".ipynb" else str(path)
                exec(compile(text, shown, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    finally:
        if before is not None:
            sys.modules[module.__name__] = before


@contextmanager
def ending_forks() -> Iterator[None]:
    """End what a block forks where that leaves the block, as it would end its program.

    Raises:
        ForkEndedError: This is a process that the block has forked.
    """
    process = os.getpid()
    code: Any = None
    try:
        yield
    except BaseException as error:
        if os.getpid() == process:
            raise
        code = error.code if isinstance(error, SystemExit) else 1
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
    if os.getpid() != process:
        raise ForkEndedError(code)


@contextmanager
def _waiting_for_threads(record: Record) -> Iterator[None]:
    """Wait at the end of a block for its threads and processes, as Python does before it exits."""
    before = {*threading.enumerate(), *multiprocessing.active_children()}
    owner, futures, submit = os.getpid(), list[Future[Any]](), ThreadPoolExecutor.submit

    def submit_known(pool: ThreadPoolExecutor, *args: Any, **options: Any) -> Future[Any]:
        futures.append(submit(pool, *args, **options))
        return futures[-1]

    def list_new() -> list[threading.Thread]:
        # The threads of a pool wait for ever, once all is done that the pool was given.
        pools = {*getattr(thread, "_threads_queues", ()), *getattr(process, "_threads_wakeups", ())}
        return [one for one in threading.enumerate() if one not in before | pools]

    def list_threads() -> list[str]:
        pools = ["those of a pool"] if any(not future.done() for future in futures) else []
        return pools + sorted(one.name for one in list_new() if not one.daemon)

    def list_processes() -> list[str]:
        return sorted(one.name for one in _find_processes() if one not in before)

    def wait() -> None:
        until = time.monotonic() + _PATIENCE_SEC
        while (list_threads() or list_processes()) and time.monotonic() < until:
            time.sleep(_POLL_SEC)
        if left := list_threads():
            record.sources.say(f"the script has ended; waiting for its threads: {', '.join(left)}")
        elif left := list_processes():
            record.sources.say(f"the script has ended; its processes go on: {', '.join(left)}")
        while list_threads():
            time.sleep(_POLL_SEC)

    with mock.patch.object(ThreadPoolExecutor, "submit", submit_known):
        try:
            yield
        finally:
            try:
                if os.getpid() == owner:
                    wait()
            except KeyboardInterrupt:
                # Python would wait for them once more.
                threading._shutdown = lambda: None  # type: ignore[attr-defined]  # noqa: SLF001
                atexit.unregister(multiprocessing.util._exit_function)  # type: ignore[attr-defined]  # noqa: SLF001
                raise
            finally:
                record.outlives_script = os.getpid() != owner or bool(list_new())


def _find_processes() -> list[BaseProcess]:
    """Return the processes of this one that Python waits for at its exit.

    It ends those of a pool or a manager itself; other libraries keep theirs for the next use.
    """
    ending = list(getattr(multiprocessing.util, "_finalizer_registry", {}).values())
    pools = list(getattr(process, "_threads_wakeups", ()))
    ended = [one for finalizer in ending for one in getattr(finalizer, "_args", None) or ()]
    ended += [one for pool in pools for one in [*pool.processes.values()]]
    return [
        one
        for one in multiprocessing.active_children()
        if type(one).__module__ == _PROCESS
        and not one.daemon
        and not any(one is other for other in ended)
    ]


def _run_magic(text: str, module: ModuleType) -> str:
    """Return the Python of a cell: files are written, other magics and shell lines left out."""
    text = textwrap.dedent(text)
    found = _CELL_MAGIC.match(text.lstrip())
    if found and found[1] in ("writefile", "file"):
        target = re.sub(r"\{(\w+)\}", lambda m: str(module.__dict__[m[1]]), found[2].strip())
        target = target.removeprefix("-a ").strip()
        Path(target).write_text(text.lstrip().partition("\n")[2], encoding="utf-8")
        return ""
    if found and found[1] not in ("time", "timeit", "capture"):
        return ""
    # An empty block would be an error.
    return re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", text)


def _explain(
    path: Path, error: BaseException, record: Record, arguments: Sequence[str]
) -> PipelineError:
    """Return why a script failed: the first refusal, else its own error with what to do."""
    if isinstance(error, PipelineError):
        return error
    if record.refusals:
        return record.refusals[0]
    if isinstance(error, ModuleNotFoundError):
        return _explain_import(path, error)
    # A syntax error's text repeats where it is.
    told = error.msg if isinstance(error, SyntaxError) else error
    text, hint = " ".join(str(told).split())[:600], ""
    if isinstance(error, SyntaxError) and re.match(r"\s*[\w, ]+=\s*[!%]", error.text or ""):
        hint = " (`!` and `%` behind a `=` are IPython's: write it in Python)"
    takes = re.search(r"\b(argparse|sys\.argv|click)\b", path.read_text(errors="replace"))
    if takes and not arguments:
        hint = " (it takes arguments: give them after `--`)"
    elif isinstance(error, KeyError) and text.strip("'").isupper():
        hint = " (it reads this variable from its environment: set it)"
    elif "Unsupported annotation type" in text:
        hint = " (azure-ai-ml cannot read it under `from __future__ import annotations`)"
    line = _find_line(path, error)
    return PipelineError(f"{path}{line} fails: {type(error).__name__}: {text}{hint}")


def _explain_import(path: Path, error: ModuleNotFoundError) -> PipelineError:
    name = str(error.name or error)
    parts = name.split(".")
    if parts[0] == "azureml" and (len(parts) == 1 or parts[1] in _SDK_V1):
        return PipelineError(
            f"{path}{_find_line(path, error)} imports {name}: the first SDK of Azure ML, which "
            "azure-ai-ml replaced. Port it to azure-ai-ml, whose pipelines run here."
        )
    if name.startswith("azure.ml.component"):
        return PipelineError(
            f"{path}{_find_line(path, error)} imports {name}: azure-ml-component, a preview that "
            "azure-ai-ml replaced. Port it to azure-ai-ml, whose pipelines run here."
        )
    package = "-".join(parts) if parts[0] == "azure" else parts[0]
    return PipelineError(
        f"{path}{_find_line(path, error)} imports {name}, which is not installed: "
        f"pip install {package}."
    )


def _find_line(path: Path, error: BaseException) -> str:
    """Return the line of the file at which an error passed, for the message."""
    if isinstance(error, SyntaxError):
        return f"{(error.filename or '').removeprefix(str(path))}, line {error.lineno}"
    line, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(str(path)):
            line = f"{file.removeprefix(str(path))}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return line
