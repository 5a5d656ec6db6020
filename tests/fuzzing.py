"""Coverage-guided fuzzing of everything that reads what others wrote; run by hand.

    $ pip install atheris
    $ python -m tests.fuzzing document 600        # a target and seconds; without: the list

A loader may give something or raise one of our own errors; anything else is a finding, which
atheris prints and keeps as `crash-…`. It becomes an ordinary test beside the others. JSON is
mutated as a tree, or a fuzzer would see little more than the parser.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Target(NamedTuple):
    """What is fuzzed: a function of bytes, and what it is started with."""

    run: Callable[[bytes], object]
    seeds: list[bytes]
    is_json: bool = False


def _document() -> Target:
    from mlflow_perf.document import PerfDocument
    from mlflow_perf.sinks.html import render

    def run(data: bytes) -> None:
        document = PerfDocument.from_json(data)
        document.run_summary  # noqa: B018  # the property is what is fuzzed
        document.merge(document)
        json.dumps(document.as_dict(), allow_nan=False)
        render(document)

    return Target(
        run, [(_recorded("node-0.json")), b'{"0": [{"timestamp": 1.0, "mem_percent": 2}]}']
    )


def _operations() -> Target:
    from mlflow_perf.operations import OperationMetrics

    metrics = OperationMetrics()
    metrics.add_time("a", "k", 1.0)
    metrics.add_counter("c", ["k1", "k2"], 2)
    seed = json.dumps(metrics.as_dict(max_keys=None)).encode()
    return Target(lambda data: OperationMetrics.from_dict(_json(data)).as_dict(), [seed], True)


def _transfers() -> Target:
    from mlflow_perf import NixlKVConnectorStats, transfers

    stats = NixlKVConnectorStats()
    stats.record_failed_transfer()
    seed = json.dumps({"nixl": stats.as_dict()}).encode()

    def run(data: bytes) -> None:
        for found in transfers.from_dict(_json(data)).values():
            found.reduce()

    return Target(run, [seed], is_json=True)


def _journal() -> Target:
    from mlflow_perf.recovery import read_journal

    return Target(read_journal, [_recorded("*.journal")])


def _spool() -> Target:
    from mlflow_perf.operations import OperationMetrics
    from mlflow_perf.operations.spool import OperationSpool, drain

    folder = Path(tempfile.mkdtemp())
    metrics = OperationMetrics()
    metrics.attach(OperationSpool(folder, metrics))
    for number in range(3):
        metrics.add_time("load", "k", float(number))
        metrics.add_counter("rows", ["k1", "k2"], 2)
        metrics.add_attribute("dataset", None, "higgs")
    metrics.attach(None)
    (written,) = folder.iterdir()
    seed = written.read_bytes()

    def run(data: bytes) -> None:
        written.write_bytes(data)
        into = OperationMetrics()
        drain(folder, into)
        into.as_dict()

    return Target(run, [seed])


def _spans(*patterns: str) -> Callable[[], Target]:
    def make() -> Target:
        from mlflow_perf.spans import analyses, imports

        memory = Path("/dev/shm")
        folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))

        def run(data: bytes) -> None:
            (folder / "spans.sqlite3").unlink(missing_ok=True)
            (folder / "source").write_bytes(data)
            imports.import_sources([folder / "source"], folder / "spans.sqlite3")
            analyses.types(folder / "spans.sqlite3")

        data = ROOT / "tests" / "spans" / "data"
        seeds = [p.read_bytes() for pattern in patterns for p in data.rglob(pattern)]
        return Target(run, seeds or _TRACES, is_json=not seeds)

    return make


def _recorded(pattern: str) -> bytes:
    """Return what a real block leaves behind under a name."""
    import subprocess

    with tempfile.TemporaryDirectory() as folder:
        code = (
            "import mlflow_perf, os, signal\n"
            "with mlflow_perf.report('fuzz', interval=0.05) as perf:\n"
            "    with perf.time('load'): sum(range(3_000_000))\n"
            + ("    os.kill(os.getpid(), signal.SIGKILL)\n" if "journal" in pattern else "")
        )
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src" / "common"),
            "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns",
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_PERF_DIR": folder,
        }
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, check=False)
        return next(Path(folder).rglob(pattern)).read_bytes()


def _json(data: bytes) -> dict[str, object]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_TRACES = [
    b"""{"traceEvents": [{"name": "a", "cat": "c", "ph": "X", "ts": 1, "dur": 5, "pid": 1, "tid": 2,
    "args": {"x": 1}}, {"name": "b", "ph": "B", "ts": 2, "pid": 1, "tid": 2}, {"ph": "E", "ts": 3,
    "pid": 1, "tid": 2}, {"ph": "i", "name": "i", "ts": 4, "pid": 1, "tid": 2}]}""",
    b"""{"resourceSpans": [{"resource": {"attributes": [{"key": "service.name", "value":
    {"stringValue": "s"}}]}, "scopeSpans": [{"spans": [{"traceId": "01", "spanId": "02", "name": "n",
    "parentSpanId": "", "startTimeUnixNano": "1763640000000000000", "endTimeUnixNano":
    "1763640001000000000", "attributes": [{"key": "k", "value": {"intValue": "5"}}], "events":
    [{"timeUnixNano": "1763640000500000000", "name": "e"}]}]}]}]}""",
    b"""{"schema": "mlflow-perf/1", "nodes": {"0": {"node": {"index": 0}, "component": "c",
    "started": 1763640000.0, "duration_sec": 2.0, "reports": {"timestamp": [1763640000.0]},
    "operations": {"times": {"a": {"count": 1, "total_ms": 1.0, "min_ms": 1.0, "max_ms": 1.0}}}}}}""",
]

_ODD = (
    None, True, 0, -1, 2**63, 10**400, 1e308, -1e308, 5e-324, "", "0", "\x00", "\ud800", "</script>",
    [], {}, [[]], {"": None}, "9" * 5000,
)  # fmt: skip


def mutated(data: bytes, random: Random) -> bytes:
    """Return a JSON text in which one value became another, odd one, or changed its place."""
    tree = {"root": json.loads(data)}
    places = [(tree, "root")]
    for parent, key in places:
        child = parent[key]
        if isinstance(child, dict):
            places += [(child, name) for name in child]
        elif isinstance(child, list):
            places += [(child, index) for index in range(len(child))]
    parent, key = random.choice(places[1:] or places)
    other, name = random.choice(places)
    parent[key] = random.choice([*_ODD, other[name], random.uniform(-1e9, 1e9)])
    return json.dumps(tree["root"]).encode("utf-8", "surrogatepass")


TARGETS: dict[str, Callable[[], Target]] = {
    "document": _document,
    "operations": _operations,
    "transfers": _transfers,
    "journal": _journal,
    "spool": _spool,
    "workqueue": _spans("transaction_log"),
    "logs": _spans("*.log", "*.jsonlog"),
    "traces": _spans("*.json"),
}


def main() -> None:
    """Fuzz one target for so many seconds."""
    if len(sys.argv) != 3 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzzing TARGET SECONDS; targets: {', '.join(TARGETS)}")
    import atheris

    logging.disable()
    with atheris.instrument_imports(include=["mlflow_perf"]):
        from mlflow_perf.errors import MlflowPerfError

        target = TARGETS[sys.argv[1]]()
    corpus = Path(tempfile.mkdtemp())
    for number, seed in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(seed)

    def one(data: bytes) -> None:
        try:
            target.run(data)
        except MlflowPerfError:
            return

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        with contextlib.suppress(ValueError, RecursionError):
            if seed % 8:
                return mutated(data, Random(seed))  # noqa: S311  # not for secrets
        return atheris.Mutate(data, most)

    options = [f"-max_total_time={sys.argv[2]}", "-max_len=65536", "-print_final_stats=1"]
    mutator = {"custom_mutator": mutate} if target.is_json else {}
    atheris.Setup(["fuzz", str(corpus), *options], one, **mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
