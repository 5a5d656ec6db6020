"""What a step of a training loop costs, and whether the causes of slow ones are named.

`python -m benchmarks steps` measures the cost in this environment. With `--torch PYTHON`, an
interpreter that has torch and mlflow-perf, loops with one cause of slowness each are run and what
the report says of them is printed; with `--traceml PYTHON`, one that has torch and traceml-ai, the
same loops and the same cost under TraceML, in turn. `--record FILE` keeps the steps of the loops.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("_slow_loops.py")
LIMIT_US = 5.0


def main() -> int:
    """Print the tables; return 1 where a cause is not named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", help="interpreter with torch and mlflow-perf")
    parser.add_argument("--traceml", help="interpreter with torch and traceml-ai")
    parser.add_argument("--record", type=Path, help="where to write the loops' steps")
    parser.add_argument("--only", help="one cause")
    options = parser.parse_args()
    if options.torch is None:
        _print_own_cost()
        return 0
    if not options.only:
        _print_costs(options.torch, options.traceml)
    return _print_causes(options)


def _print_own_cost() -> None:
    from benchmarks._timing import usual_cpu

    from mlflow_perf.recorders import current
    from mlflow_perf.recorders.operations import OperationMetrics
    from mlflow_perf.recorders.steps import part, steps

    count = 2000

    def run_bare() -> None:
        for _ in range(count):
            pass

    def run_timed() -> None:
        for _ in steps(range(count)):
            with part("forward"):
                pass
            with part("backward"):
                pass
            with part("optimizer"):
                pass

    bare, idle = (usual_cpu(25, run) / count * 1e6 for run in (run_bare, run_timed))
    with tempfile.TemporaryDirectory() as folder:
        current.activate(OperationMetrics(), folder=Path(folder), spooled=True)
        timed = usual_cpu(25, run_timed) / count * 1e6
        current.deactivate()
    over_us = timed - bare
    print(f"CPU of a step with three parts over the bare loop: {over_us:.2f} µs (≤ {LIMIT_US})")
    print(f"the same without a session: {idle - bare:.2f} µs")


def _print_costs(ours: str, traceml: str | None) -> None:
    """Print the cost of a step under both tools, run in turn."""
    best: dict[str, float] = {}
    for _ in range(3):
        for tool, python in (("ours", ours), ("traceml", traceml)):
            if python is not None:
                with tempfile.TemporaryDirectory() as folder:
                    done = _run(tool, python, "cost", folder=Path(folder))
                line = next(line for line in done.splitlines() if line.startswith('{"bare_us"'))
                found = json.loads(line)
                cost = found["timed_us"] - found["bare_us"]
                best[tool] = min(cost, best.get(tool, cost))
    print(f"CPU of a step with three parts over the bare loop: {best['ours']:.2f} µs")
    if "traceml" in best:
        ratio = best["ours"] / best["traceml"]
        print(f"the same under TraceML: {best['traceml']:.2f} µs; ours is {ratio:.3f} of it")


def _run(tool: str, python: str, cause: str, *, folder: Path, port: int = 0, ranks: int = 1) -> str:
    """Run a loop under a tool and return what it printed."""
    arguments = [str(SCRIPT), tool, cause, str(port)]
    command = [python, *arguments]
    if tool == "traceml":
        start = [str(Path(python).with_name("traceml")), "run", f"--logs-dir={folder}"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port_option = f"--aggregator-port={free.getsockname()[1]}"
        options = [f"--nproc-per-node={ranks}", "--run-name=loop", "--interval=0.5", port_option]
        command = [*start, *options, arguments[0], "--args", *arguments[1:]]
    elif ranks > 1:
        launcher = [python, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, f"--nproc-per-node={ranks}", *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{tool}, {cause}: {done.stderr[-2000:]}")
    return done.stdout


def _run_ours(python: str, cause: str, folder: Path, **options: Any) -> Any:
    """Run a loop below a session and return the document of its node."""
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    os.environ["MLFLOW_PERF_QUIET"] = "true"
    import mlflow_perf

    with mlflow_perf.report("loop", interval=0.5) as perf:
        _run("ours", python, cause, folder=folder, **options)
    return perf.document


def _read_traceml(python: str, cause: str, folder: Path, **options: Any) -> str:
    """Run a loop under TraceML and return its diagnosis in a few words."""
    _run("traceml", python, cause, folder=folder, **options)
    summary = json.loads(next(folder.rglob("final_summary.json")).read_text())
    found = summary["primary_diagnosis"]
    rank = (found.get("evidence") or {}).get("culprit_rank")
    return f"{found['kind']}" + ("" if rank is None else f" rank {rank}")


def _print_causes(options: argparse.Namespace) -> int:
    """Print what the report says of each loop; return 1 where a cause is not the first one."""
    from mlflow_perf.analysis.findings import findings_of
    from mlflow_perf.analysis.step_causes import find_step_causes
    from mlflow_perf.recorders.steps import StepMetrics

    code = "import json, _slow_loops as loops; print(json.dumps([loops.CAUSES, loops.RANKS]))"
    listed = subprocess.check_output([options.torch, "-c", code], cwd=SCRIPT.parent, text=True)
    causes, ranks_of = json.loads(listed)
    recorded: dict[str, Any] = {}
    named = 0
    print("\ncause, rank, part: named first? its share; first finding | TraceML's diagnosis")
    for cause, expected in causes.items():
        if options.only not in (None, cause):
            continue
        ranks = ranks_of.get(cause, 1)
        theirs = "not run"
        with _slow_server() as port, _busy_cpus(cause == "busy CPUs"):
            with tempfile.TemporaryDirectory() as folder:
                document = _run_ours(options.torch, cause, Path(folder), port=port, ranks=ranks)
            if options.traceml:
                with tempfile.TemporaryDirectory() as folder:
                    theirs = _read_traceml(
                        options.traceml, cause, Path(folder), port=port, ranks=ranks
                    )
        node = document.nodes[0]
        recorded[cause] = {"expected": expected, "steps": node.steps}
        found = find_step_causes(StepMetrics.from_dict(node.steps).records())
        # What others do to this machine is not the cause that was put in.
        ranked = [c for c in found if c.cause != "contended" or expected[0] == "contended"]
        first = [[c.cause, c.rank, c.part] for c in ranked[:1]]
        is_named = first == [expected]
        named += is_named
        share = f"{ranked[0].share:.0%}" if ranked else "–"
        place = ", ".join(str(where) for where in (cause, *expected[1:]) if where is not None)
        verdict = findings_of(document)[0]
        said = "yes" if is_named else f"NO: {[(c.cause, c.rank, c.part) for c in ranked]}"
        print(f"{place}: {said} {share}; {verdict.kind}: {verdict.evidence} | {theirs}", flush=True)
    print(f"{named} of {len(recorded)} named first, with rank and part")
    if options.record:
        options.record.write_text(json.dumps(recorded))
    return int(named < len(recorded))


@contextlib.contextmanager
def _slow_server() -> Iterator[int]:
    """A server of this machine that takes 30 ms for each answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(0.03)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def _busy_cpus(wanted: bool) -> Iterator[None]:
    """Neighbours that want each CPU three times, where they are wanted."""
    code = "while True: pass"
    count = 3 * (os.cpu_count() or 1) * wanted
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
