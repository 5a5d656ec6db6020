"""Runs situations for real, and records what the sampler saw of them.

    python -m tests.analysis.situations.record [NAME …]

Without names, all are recorded anew, alone and beside a neighbour that takes half of the machine.
Control groups and networks need root and control groups of the first version; a situation that
cannot be made is skipped. Where the machine has such groups, job and neighbour get nearly all of
the CPUs, so that the load of others does not change the situation.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.analysis.situations.jobs import NEIGHBOURS, PRELUDE, SITUATIONS, Situation

from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.model.document import NodeDocument

__all__ = ["RECORDED", "find_situation", "measure", "read_recorded"]

RECORDED = Path(__file__).with_name("recorded.jsonl")
_GROUPS = Path("/sys/fs/cgroup")
_JOB = """
{prelude}
{before}
from mlflow_perf.node.place import detect
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
collector = PerformanceMetricsCollector(interval=0.2)
collector.start()
{body}
collector.finalize()
summary, reports = collector.metrics(), collector.columns()
print(json.dumps({{"node": detect().as_dict(), "summary": summary, "reports": reports}}))
"""
_FACTS = ("cpu_count", "mem_total_mb")
_COLUMNS = (
    "elapsed_sec", "job_cpu_sec", "cpu_busy_sec", "cpu_limit_cores", "cpu_stall_sec",
    "io_stall_sec", "mem_stall_sec", "cpu_throttled_sec", "cpu_iowait_sec", "job_run_delay_sec",
    "job_ran_sec", "job_read_calls", "job_write_calls", "job_processes", "job_io_read_mb",
    "job_io_write_mb", "net_io_ext_sent_mb", "net_io_ext_recv_mb", "job_mem_mb",
    "job_threads", "job_voluntary_switches",
)  # fmt: skip
_DIGITS = 5


class CannotBeMadeError(Exception):
    """This machine does not let us make the situation."""


def find_situation(name: str) -> Situation:
    """Return the situation of a name."""
    return next(situation for situation in SITUATIONS if situation.name == name)


def read_recorded() -> dict[tuple[str, str], NodeDocument]:
    """Return (situation, neighbour or "") → the recorded document."""
    found = {}
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found[row["situation"], row["beside"]] = NodeDocument.from_dict(row["document"])
    return found


def measure(situation: Situation, *, beside: str = "", first: bool = True) -> NodeDocument:
    """Run a situation for real and return its document, thinned to what findings are made of.

    Args:
        situation: What to run.
        beside: A neighbour of `NEIGHBOURS`, in addition to the situation's own.
        first: Whether job and neighbour come before all else on this machine, where it allows that.

    Raises:
        CannotBeMadeError: When this machine does not let us make the situation.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        groups = [stack.enter_context(_group(folder, "cpu", {"cpu.shares": "200000"}))] * first
        prefix = stack.enter_context(_network()) if situation.network else []
        for name in {situation.neighbour, beside} - {None, ""}:
            code = f"{PRELUDE}\n{NEIGHBOURS[str(name)]}"
            stack.enter_context(_neighbour([*prefix, sys.executable, "-c", code], folder, groups))
        own = situation.cgroup
        groups = [group for group in groups if "cpu" not in own and not situation.alert]
        if first and situation.alert:
            prefix = ["chrt", "-r", "1", *prefix]
        groups += [stack.enter_context(_group(folder, name, own[name])) for name in own]
        time.sleep(0.5 if situation.neighbour or beside else 0.0)
        code = _JOB.format(prelude=PRELUDE, before=situation.before, body=situation.body)
        done = subprocess.run(
            [*_enter(groups), *prefix, sys.executable, "-c", code],
            cwd=folder, capture_output=True, text=True, timeout=120, check=False,
            start_new_session=True,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            if line.startswith('{"node"'):
                return NodeDocument.from_dict(_thin(json.loads(line)))
    raise AssertionError(f"{situation.name}: {done.stderr[-2000:]}")


def _thin(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with what findings are made of, in few digits."""

    def short(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.{_DIGITS}g}")

    reports = document["reports"]
    return {
        "node": {key: document["node"][key] for key in _FACTS if key in document["node"]},
        "summary": {
            key: short(value)
            for key, value in document["summary"].items()
            if not key.startswith(("ops/", "net_io_lo")) and "_over" not in key
        },
        "reports": {key: [*map(short, reports[key])] for key in _COLUMNS if key in reports},
    }


@contextlib.contextmanager
def _group(folder: Path, controller: str, files: Mapping[str, str]) -> Iterator[Path]:
    place = _GROUPS / controller / f"mlflow-perf-{os.getpid()}-{time.monotonic_ns()}"
    device = folder.stat().st_dev
    try:
        place.mkdir()
        for name, value in files.items():
            number = f"{os.major(device)}:{os.minor(device)}"
            (place / name).write_text(value.format(device=number))
    except OSError as error:
        with contextlib.suppress(OSError):
            place.rmdir()
        raise CannotBeMadeError(str(error)) from error
    try:
        yield place
    finally:
        for pid in (place / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        for _ in range(100):
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.05)


def _enter(groups: list[Path]) -> list[str]:
    moves = "".join(f"echo $$ > {group}/cgroup.procs && " for group in groups)
    return ["sh", "-c", f'{moves}exec "$@"', "sh"]


@contextlib.contextmanager
def _neighbour(command: list[str], folder: Path, groups: list[Path]) -> Iterator[None]:
    command = [*_enter(groups), *command]
    process = subprocess.Popen(command, cwd=folder, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _network() -> Iterator[list[str]]:
    """Make a network of two ends; yield the command that runs another on the first of them."""
    here, there = (f"mlflowperf{os.getpid()}{side}" for side in "ab")
    name = f"mp{os.getpid() % 10000}"
    made = [
        f"netns add {here}",
        f"netns add {there}",
        f"link add {name}a type veth peer name {name}b",
        f"link set {name}a netns {here}",
        f"link set {name}b netns {there}",
        f"-n {here} addr add 10.99.0.1/24 dev {name}a",
        f"-n {there} addr add 10.99.0.2/24 dev {name}b",
        f"-n {here} link set {name}a up",
        f"-n {there} link set {name}b up",
        f"-n {here} link set lo up",
    ]
    try:
        for arguments in made:
            done = subprocess.run(["ip", *arguments.split()], capture_output=True, check=False)
            if done.returncode:
                raise CannotBeMadeError(done.stderr.decode())
        yield ["ip", "netns", "exec", here]
    except FileNotFoundError as error:
        raise CannotBeMadeError(str(error)) from error
    finally:
        for space in (here, there):
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def main(names: list[str]) -> None:
    """Record the situations of these names, or all; print situation, expected and found."""
    rows = {}
    if RECORDED.exists():
        for line in RECORDED.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["situation"], row["beside"]] = row
    for situation in SITUATIONS:
        if names and situation.name not in names:
            continue
        for beside in ("", "half"):
            try:
                document = measure(situation, beside=beside)
            except CannotBeMadeError as error:
                print(f"{situation.name:26} {beside:5} skipped: {error}")
                continue
            first = findings_of(document)[0]
            expected = (situation.beside if beside else ()) or (situation.expected,)
            mark = " " if first.kind in expected else "*"
            print(f"{mark} {situation.name:26} {beside:5} {'|'.join(expected):20} {first.kind:14} "
                  f"{first.confidence:.2f} {first.sentence[:110]}", flush=True)  # fmt: skip
            rows[situation.name, beside] = {
                "situation": situation.name,
                "beside": beside,
                "document": document.as_dict(),
            }
            _write(rows)


def _write(rows: Mapping[tuple[str, str], Any]) -> None:
    known = [s.name for s in SITUATIONS]
    kept = sorted((k for k in rows if k[0] in known), key=lambda k: (known.index(k[0]), k[1]))
    text = "".join(json.dumps(rows[k], separators=(",", ":")) + "\n" for k in kept)
    RECORDED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
