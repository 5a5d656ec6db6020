"""Runs a job twice, without and with mlflow-perf, and compares everything that its user would see.

A job is a piece of Python in which `with BLOCK:` marks what is measured. Compared are exit code or
signal, standard output, standard error (mlflow-perf may add lines of its own), the files in the
working folder, and what is left of the block inside the process: handlers and masks, threads,
descriptors, working folder, umask, environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# What differs between any two runs of a job: times, and the ids of MLflow's runs.
_VARYING = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d |\b1\d{12}\b|\b[0-9a-f]{32}\b")
_OF_THE_REPORT = re.compile(r"mlruns/\d+/[0-9a-f]{32}/artifacts/perf(_report\.html$|/)")
LIMIT_SEC = 60.0
"""A job that takes longer hangs; without mlflow-perf each takes a few seconds at most."""

_PRELUDE = """\
import contextlib as _contextlib, os as _os, re as _re
if "HARM_AUTOLOG" in _os.environ and "HARM_OWN_RUNS" not in _os.environ:
    def _block(**options):
        import mlflow
        return mlflow.start_run(run_name="harm", nested=True)
elif _os.environ.get("HARM_WITH") and "HARM_AUTOLOG" not in _os.environ:
    import mlflow_perf as _mlflow_perf
    def _block(**options):
        return _mlflow_perf.report("harm", **{"interval": 0.05, **options})
else:
    def _block(**options):
        return _contextlib.nullcontext()
class _Block:
    def __init__(self):
        self.inner = []
    def __enter__(self):
        self.inner.append(_block())
        return self.inner[-1].__enter__()
    def __exit__(self, *error):
        return self.inner.pop().__exit__(*error)
BLOCK = _Block()
block = _block
def note_state():
    import gc, json, signal, sys, threading
    if "HARM_AUTOLOG" in _os.environ and "HARM_WITH" in _os.environ:
        import mlflow_perf
        mlflow_perf.autolog(disable=True)  # it keeps its threads and handlers for the next run
    # A call of MLflow, with its git, may last a moment longer than a block that it was for, and
    # another one may begin at its end.
    for _ in range(3):
        for thread in list(threading._active.copy().values()):
            if thread.name.startswith(("mlflow-perf", "perf-")):
                thread.join(10)
    gc.collect()
    numbers = [n for n in range(1, 65) if n not in (9, 19, 32, 33)]
    fds = {}
    for name in sorted(_os.listdir("/proc/self/fd"), key=int):
        with _contextlib.suppress(OSError):
            fds[name] = _os.readlink(f"/proc/self/fd/{name}")
    threads = list(threading._active.copy().values())  # `enumerate` leaves ours out
    umask = _os.umask(0o22)
    _os.umask(umask)
    state = {
        "handlers": [_re.sub(" at 0x[0-9a-f]+", "", repr(signal.getsignal(n))) for n in numbers],
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "threads": sorted(t.name for t in threads if not t.daemon),
        "ours": sorted(t.name for t in threads if t.name.startswith("mlflow-perf")),
        "wakeup": signal.set_wakeup_fd(-1),
        "folder": _os.path.relpath(_os.getcwd(), _os.environ["HARM_FOLDER"]),
        "umask": umask,
        "environ": {k: v for k, v in _os.environ.items() if k in ("MINE", "PATH", "PYTHONPATH")},
        "hooks": [
            _re.sub(" at 0x[0-9a-f]+", "", repr(hook))
            for hook in (sys.excepthook, threading.excepthook, sys.unraisablehook)
        ],
        "descriptors": fds,
    }
    with open(_os.environ["HARM_STATE"], "w") as file:
        json.dump(state, file)
"""


@dataclass
class Seen:
    """What a user sees of one run of a job.

    Attributes:
        code: Exit code; negative for a signal, None for a job that had to be killed.
        stdout: Standard output.
        stderr: Lines of standard error.
        files: Relative path → digest of the files that the job left in its folder.
        state: What the job noted of its process with `note_state()`.
        seconds: How long it took.
    """

    code: int | None
    stdout: str
    stderr: list[str]
    files: dict[str, str]
    state: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Zygote:
    """Forks jobs from a process that has MLflow imported already, and modules besides."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py"), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # The buffers of the standard streams are as a user's interpreter has them.
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        )

    def run(self, request: dict[str, Any]) -> int | None:
        """Run a job and return its exit code, or None if it hung and was killed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        pid = int(stdout.readline())
        with _killed_after(LIMIT_SEC, pid) as killed:
            code = int(stdout.readline())
        return None if killed.is_set() else code

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


@contextmanager
def _killed_after(seconds: float, pid: int) -> Iterator[Any]:
    import threading

    over, killed = threading.Event(), threading.Event()

    def watch() -> None:
        if not over.wait(seconds):
            killed.set()
            os.killpg(pid, signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def run_job(
    code: str,
    folder: Path,
    *,
    measured: bool,
    zygote: Zygote | None,
    environ: dict[str, str],
    whole: bool = False,
) -> Seen:
    """Run a job once.

    Args:
        code: The job; it may use `BLOCK`, `block(**options)` and `note_state()`.
        folder: An empty folder for everything of this run.
        measured: Whether `BLOCK` is a report of mlflow-perf; with `HARM_AUTOLOG` in the
            environment it is a run of MLflow both times, which autolog reports when it is measured;
            for a job that starts runs itself it is nothing, and autolog reports those runs.
        zygote: Where to fork it from; None for an interpreter of its own.
        environ: Variables to set besides.
        whole: Whether a forked job frees everything at its end, as an interpreter does.
    """
    work = folder / "work"
    work.mkdir(parents=True)
    script = folder / "job.py"
    script.write_text(_PRELUDE + code, encoding="utf-8")
    variables = {**os.environ, **environ, "HARM_FOLDER": str(folder)}
    variables["HARM_STATE"] = str(folder / "state.json")
    variables.update({"HOME": str(folder), "MLFLOW_PERF_DIR": str(folder / "journals")})
    for name in ("MLFLOW_PERF_PROFILE", "PYTHONUNBUFFERED"):  # as a user has it
        variables.pop(name, None)
    autolog = "HARM_AUTOLOG" in os.environ
    if "mlflow.start_run(" in code:
        variables["HARM_OWN_RUNS"] = "1"
    if measured:
        variables["HARM_WITH"] = "1"
        variables.update({"MLFLOW_PERF_AUTOLOG": "true"} if autolog else {})
    started = time.monotonic()
    if zygote is not None:
        request = {
            "script": str(script), "folder": str(work), "environ": variables, "whole": whole,
            "stdout": str(folder / "stdout"), "stderr": str(folder / "stderr"),
        }  # fmt: skip
        exit_code = zygote.run(request)
    else:
        exit_code = _run_fresh(script, work, folder, variables)
    seconds = time.monotonic() - started
    files = {
        str(path.relative_to(work)): _digest(path)
        for path in sorted(work.rglob("*"))
        if path.is_file() and not (autolog and _OF_THE_REPORT.match(str(path.relative_to(work))))
    }
    state = folder / "state.json"
    return Seen(
        exit_code,
        (folder / "stdout").read_text("utf-8", "replace"),
        (folder / "stderr").read_text("utf-8", "replace").splitlines(),
        files,
        json.loads(state.read_text("utf-8")) if state.exists() else {},
        seconds,
    )


def _digest(path: Path) -> str:
    if path.suffix == ".db":  # an MLflow store, with times and ids
        return ""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    # The job's standard output may be such a file.
    return hashlib.sha256(_without_links(text).encode("utf-8", "surrogateescape")).hexdigest()


def _run_fresh(script: Path, work: Path, folder: Path, environ: dict[str, str]) -> int | None:
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=work, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(LIMIT_SEC)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def differences(bare: Seen, measured: Seen) -> list[str]:
    """Return a sentence for each thing that mlflow-perf changed for the job's user."""
    found = []
    if measured.code != bare.code:
        found.append(f"exit code {bare.code} became {measured.code}")
    if _without_links(measured.stdout) != _without_links(bare.stdout):
        found.append(f"standard output {bare.stdout!r} became {measured.stdout!r}")
    remaining = iter(_VARYING.sub("", line) for line in measured.stderr)
    if not all(any(line == other for other in remaining) for line in _without_paths(bare.stderr)):
        found.append(f"standard error lost lines of {bare.stderr}")
    # A log may hold a traceback: MLflow logs what its store raises. These come past every log.
    if _count_uncaught(measured.stderr) > _count_uncaught(bare.stderr):
        found.append("an exception that nobody caught was added to standard error")
    if measured.files != bare.files:
        found.append(f"files {sorted(bare.files)} became {sorted(measured.files)}")
    for name, value in bare.state.items():
        if name != "descriptors" and measured.state.get(name) != value:
            found.append(f"{name} {value!r} became {measured.state.get(name)!r}")
    found += _leaked_descriptors(bare.state, measured.state)
    return found


def _count_uncaught(lines: list[str]) -> int:
    return sum(line.startswith(("Exception in thread", "Exception ignored")) for line in lines)


def _without_links(text: str) -> str:
    # MLflow's lines have the names of their runs.
    return re.sub(r"^(🏃 View run|🧪 View experiment) .*\n", "", text, flags=re.MULTILINE)


def _without_paths(lines: list[str]) -> list[str]:
    # A traceback names the script, whose folder differs between the two runs.
    lines = [_VARYING.sub("", line) for line in lines if " at 0x" not in line]
    return [line for line in lines if "job.py" not in line and "zygote.py" not in line]


def _leaked_descriptors(bare: dict[str, Any], measured: dict[str, Any]) -> list[str]:
    # MLflow keeps its database and its connections open; what mlflow-perf opens must be closed.
    def count_kinds(state: dict[str, Any]) -> Counter[str]:
        targets = state.get("descriptors", {}).values()
        known = ("journal", "spool", "pipe:", "/proc/", "/sys/")
        return Counter(kind for target in targets for kind in known if kind in target)

    more = count_kinds(measured) - count_kinds(bare)
    return [f"{count} descriptors are left open: {kind}" for kind, count in more.items()]
