"""What `tests.fuzz.run` fuzzes: each loader, with something real to start from."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.fuzz import foreign_targets as foreign
from tests.fuzz.mutators import mutated_database, mutated_json, mutated_lines, mutated_query

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

Mutator = Callable[[bytes, Random], bytes]


class Target(NamedTuple):
    """What is fuzzed: a function of bytes, what it is started with, and how that is changed."""

    run: Callable[[bytes], object]
    seeds: list[bytes]
    mutator: Mutator | None = None


def document() -> Target:
    """A document: read, summed up, merged, kept and drawn."""
    from mlflow_perf.core.json_io import to_json
    from mlflow_perf.model.document import PerfDocument
    from mlflow_perf.reports.html import render

    def run(data: bytes) -> None:
        found = PerfDocument.from_json(data)
        found.run_summary  # noqa: B018  # the property is what is fuzzed
        found.merge(found)
        json.loads(to_json(found.as_dict()), parse_constant=_no_constant)
        render(found)

    seed = b'{"0": [{"timestamp": 1.0, "mem_percent": 2}]}'
    return Target(run, [_recorded("node-0.json"), seed], mutated_json)


def analysis() -> Target:
    """A document: compared, checked, advised on and shown, beside one that is whole."""
    from mlflow_perf.analysis.compare import compare
    from mlflow_perf.analysis.findings import findings_of
    from mlflow_perf.analysis.gate import check
    from mlflow_perf.analysis.gate_reports import to_junit, to_markdown
    from mlflow_perf.analysis.rightsize import right_size
    from mlflow_perf.analysis.workflow import build_workflow
    from mlflow_perf.model.document import PerfDocument
    from mlflow_perf.reports.html import render_comparison
    from mlflow_perf.tracking.load import merge_without_curves
    from mlflow_perf.tracking.perf_run import PerfRun

    seed = _recorded("node-0.json")
    whole = PerfRun.from_document("whole", merge_without_curves([PerfDocument.from_json(seed)]))

    def run(data: bytes) -> None:
        odd = PerfRun.from_document("odd", merge_without_curves([PerfDocument.from_json(data)]))
        compared = compare([whole, odd])
        compared.to_markdown(everything=True)
        render_comparison(compared.as_dict())
        judged = check([whole], [odd], ["node_cpu_hours=+10%", "max_t_mem_percent=90"])
        to_markdown(judged)
        to_junit(judged)
        for node in odd.document.nodes.values() if odd.document else ():
            findings_of(node)
        build_workflow(whole, [odd, whole])
        right_size([odd])

    return Target(run, [seed], mutated_json)


def workflow() -> Target:
    """A `workflow.json`, as the page beside the UI takes it from a run's artifacts."""
    from tests.reports import html_samples

    from mlflow_perf.model.document import PerfDocument
    from mlflow_perf.reports.html import render

    def run(data: bytes) -> None:
        render(PerfDocument(), workflow=_json(data))

    return Target(run, [json.dumps(html_samples.WORKFLOW).encode()], mutated_json)


def operations() -> Target:
    """The operations of a document."""
    from mlflow_perf.recorders.operations import OperationMetrics

    metrics = OperationMetrics()
    metrics.add_time("a", "k", 1.0)
    metrics.add_counter("c", ["k1", "k2"], 2)
    seed = json.dumps(metrics.as_dict(max_keys=None)).encode()

    def run(data: bytes) -> None:
        found = OperationMetrics.from_dict(_json(data))
        json.dumps(found.as_dict(), allow_nan=False)
        _finite(found.summary_metrics())

    return Target(run, [seed], mutated_json)


def transfers() -> Target:
    """The transfers of a document."""
    from mlflow_perf import NixlKVConnectorStats

    stats = NixlKVConnectorStats()
    stats.record_figures((0.5, 0.1, 1000.0, 2.0))
    stats.record_failed_transfer()
    seed = json.dumps(stats.as_dict()).encode()

    def run(data: bytes) -> None:
        found = NixlKVConnectorStats(_json(data))
        found.reduce()
        NixlKVConnectorStats().aggregate(found)

    return Target(run, [seed], mutated_json)


def journal() -> Target:
    """The journal of a job that was killed."""
    from mlflow_perf.core.json_io import to_json
    from mlflow_perf.publish.recovery import read_journal

    def run(data: bytes) -> None:
        delivery, _ = read_journal(data)
        to_json(delivery.document.as_dict())

    return Target(run, [_recorded("*.journal")], _lines_of_json)


def spool() -> Target:
    """What the processes of a job wrote of their operations."""
    from mlflow_perf.recorders.collect import collect_operations
    from mlflow_perf.recorders.operations import OperationMetrics

    folder = _scratch()
    metrics = OperationMetrics()
    metrics.spool_to(folder)
    for number in range(3):
        metrics.add_time("load", "k", float(number))
        metrics.add_counter("rows", ["k1", "k2"], 2)
        metrics.add_attribute("dataset", None, "higgs")
    metrics.spool_to(None)
    (written,) = folder.iterdir()
    seed = written.read_bytes()

    def run(data: bytes) -> None:
        written.write_bytes(data)
        into = OperationMetrics()
        collect_operations(folder, into)
        into.as_dict()

    return Target(run, [seed])


def _imports(*seeds: bytes, mutator: Mutator | None = None, name: str = "source") -> Target:
    from mlflow_perf.spans.analyses.type_graph import types
    from mlflow_perf.spans.importers import load_sources as imports

    folder = _scratch()
    db = folder / "spans.sqlite3"

    def run(data: bytes) -> None:
        db.unlink(missing_ok=True)
        (folder / name).write_bytes(data)
        imports.import_sources([folder / name], db)
        types(db)

    return Target(run, list(seeds), mutator)


def workqueue() -> Target:
    """A transaction log of Work Queue."""
    return _imports((TESTS / "spans" / "data" / "transaction_log").read_bytes())


def metric_lines() -> Target:
    """METRIC lines of a log, with Unix times and local ones."""
    return _imports(
        b"1669383194.390360 2022-11-25 13:33:14 parsl DEBUG: METRIC STRATEGY htex a=3 b=2\n",
        b"2022-11-25 13:33:14.5 parsl METRIC STRATEGY htex_Local a=-1e5 b=nan\n",
    )


def traces() -> Target:
    """Chrome's, OpenTelemetry's and our own JSON."""
    return _imports(*_TRACES, mutator=mutated_json)


def packed() -> Target:
    """A trace packed by gzip: changed before it is packed, or after."""
    import gzip

    def mutate(data: bytes, random: Random) -> bytes:
        if random.random() < 0.5:
            return mutated_lines(data, random)
        return gzip.compress(mutated_json(gzip.decompress(data), random))

    return _imports(gzip.compress(_TRACES[0]), mutator=mutate)


def parsl_run() -> Target:
    """The folder of a Parsl run: the same lines as every one of its logs."""
    from mlflow_perf.spans.analyses.type_graph import types
    from mlflow_perf.spans.importers import load_sources as imports

    folder = _scratch()
    db, run_folder = folder / "spans.sqlite3", folder / "000"
    manager = run_folder / "htex" / "block-0" / "abc"
    manager.mkdir(parents=True)
    logs = [run_folder / "parsl.log", run_folder / "htex" / "interchange.log"]
    logs += [manager / "manager.log", manager / "worker_0.log"]

    def run(data: bytes) -> None:
        db.unlink(missing_ok=True)
        for log in logs:
            log.write_bytes(data)
        imports.import_sources([run_folder], db)
        types(db)

    seeds = [p.read_bytes() for p in (TESTS / "spans" / "data").rglob("*log") if p.is_file()]
    return Target(run, seeds, mutated_lines)


def databases() -> Target:
    """Databases of Parsl's monitoring, of MLflow and of dnpcsql: cells, tables and bytes."""
    from tests.spans.conftest import Make
    from tests.spans.importers import test_importers_contract as contract

    seeds = []
    for kind in ("parsl-monitoring", "mlflow-store", "dnpcsql"):
        path = contract._SOURCES[kind](Make(), _scratch(), 0)  # our own tests'
        seeds.append(_small(path))
    return _imports(*seeds, mutator=mutated_database, name="source.db")


def spans() -> Target:
    """A spans database from somebody else: every analysis of it."""
    from mlflow_perf.spans.analyses import times
    from mlflow_perf.spans.analyses.concurrency import concurrency
    from mlflow_perf.spans.analyses.type_graph import type_graph, types
    from mlflow_perf.spans.importers import load_sources as imports
    from mlflow_perf.spans.output.export import to_chrome_trace

    folder = _scratch()
    (folder / "trace.json").write_bytes(_TRACES[0])
    db = folder / "spans.sqlite3"
    imports.import_sources([folder / "trace.json"], db)

    def run(data: bytes) -> None:
        for old in folder.glob("spans*"):
            old.unlink()
        db.write_bytes(data)
        root = str(types(db)[0]["type"])
        times.durations(db)
        times.span_durations(db, root)
        concurrency(db, root)
        type_graph(db)
        to_chrome_trace(db, folder / "out.json")

    return Target(run, [_small(db)], mutated_database)


def _small(path: Path) -> bytes:
    """Return a database of small pages, most of which hold something."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA page_size = 512")
        db.execute("VACUUM")
    return path.read_bytes()


def scraped() -> Target:
    """What a Prometheus endpoint answers, twice."""
    from prometheus_client.parser import text_string_to_metric_families as families

    from mlflow_perf.integrations._scraped import Scraped

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        # Another's parser: what it does not take is one warning of the reader's.
        try:
            first: list[Any] = list(families(text))
            second: list[Any] = list(families(text.replace("1", "2")))
        except Exception:  # noqa: BLE001  # as above
            return
        found = Scraped()
        _finite(found.update(first, first=True))
        _finite(found.update(second, first=False))
        _finite(found.summary_metrics())
        found.transfers().reduce()

    return Target(run, [_SCRAPED], mutated_lines)


def environment() -> Target:
    """Our settings, the launchers' variables and the scheduler's limits."""
    from mlflow_perf.core.settings import SETTINGS, read_setting
    from mlflow_perf.errors import SettingError
    from mlflow_perf.node import place as node
    from mlflow_perf.node.launchers import LAUNCHERS
    from mlflow_perf.readers.cgroup.limits import owned

    names = {row.variable for row in SETTINGS.values()} | {"SLURM_JOB_ID"}
    names |= {"MLFLOW_PERF_NODE", "MLFLOW_PERF_NODE_COUNT", "MLFLOW_PERF_RANKS_PER_NODE"}
    names |= {"SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"}
    names |= {"AZ_BATCH_NODE_LIST", "AZ_BATCHAI_NODE_IP", "HOSTNAME"}
    for row in LAUNCHERS:
        names |= {*row.marks, row.rank, *row.size, row.local_rank, row.local_size, row.node}

    def run(data: bytes) -> None:
        environ = {str(k): v for k, v in _json(data).items() if isinstance(v, str)}
        place = node.detect(environ)
        json.dumps(place.as_dict())
        mine = owned(environ=environ)
        assert math.isfinite(mine.cores), mine
        for name in SETTINGS:
            with suppress(SettingError):
                read_setting(name, environ=environ)

    return Target(
        run, [json.dumps(dict.fromkeys(sorted(names - {""}), "1")).encode()], _one_variable
    )


def _one_variable(data: bytes, random: Random) -> bytes:
    environ = json.loads(data)
    odd = ("", " 2 ", "-1", "9" * 5000, "1e999", "nan", "\x00", "16(x2),8", "http://[", "../x", "²")
    for name in random.sample(sorted(environ), 2):
        environ[name] = random.choice([*odd, str(random.randrange(10)), *environ.values()])
    environ.pop(random.choice(sorted(environ)))
    return json.dumps(environ).encode()


def names() -> Target:
    """Names that become keys, conditions, Markdown, XML and lines of a terminal."""
    from mlflow.utils.validation import _validate_metric_name

    validate: Callable[[str], None] = _validate_metric_name

    from mlflow_perf.analysis.gate_limits import parse_limit
    from mlflow_perf.analysis.markdown import escape, format_code
    from mlflow_perf.cli._tables import clean
    from mlflow_perf.core.format import clean_metric_key
    from mlflow_perf.errors import MlflowPerfError
    from mlflow_perf.pipelines.values import parse_literal
    from mlflow_perf.recorders.operations.names import metric_name

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        validate(clean_metric_key(text))
        validate(clean_metric_key(f"ops/{metric_name(text)}/count"))
        assert clean(text).isprintable() or "\n" not in clean(text)
        assert "\n" not in escape(text) + format_code(text)
        for kind in ("integer", "number", "boolean"):
            with suppress(MlflowPerfError):
                parse_literal(text, kind, where="x")
        parse_limit(text)

    return Target(run, [b"node_cpu_hours=+10%", b"../x//..", b"train:cpu<=90", b"a\x1b[31m|`<b>"])


def page() -> Target:
    """The addresses of the page beside the UI."""
    import flask
    from mlflow.server import app as flask_app
    from tests.fuzz.mutators import MARK
    from tests.web.web_store import fill

    from mlflow_perf.web import pages
    from mlflow_perf.web.app import register

    folder = Path(tempfile.mkdtemp())
    filled = fill(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts", more=3)
    _serve(filled.uri)
    register(flask_app)
    client = flask_app.test_client()
    errors: list[Exception] = []
    flask.got_request_exception.connect(
        lambda _app, exception, **_: errors.append(exception), flask_app, weak=False
    )
    paths = tuple(pages.ROUTES)

    def run(data: bytes) -> None:
        errors.clear()
        where, query = (
            paths[data[0] % len(paths)] if data else paths[0],
            data[1:].decode("utf-8", "ignore"),
        )
        answer = client.get(where, query_string=query)
        if errors:
            raise errors[0]
        assert answer.status_code < 500, f"{answer.status_code} {answer.text[-300:]}"
        assert f"<{MARK}" not in answer.text, "markup"
        assert f'" {MARK}' not in answer.text, "attribute"

    ids = [filled.runs[name] for name in ("train", "training", "hostile")]
    seeds = [
        b"\x00component=train&sort=-name&limit=2&page=2&q=tr&status=FINISHED&experiment=1",
        f"\x00filter=tags.`mlflow_perf.component` = 'train'&experiment={1}".encode(),
        f"\x05id={ids[0]}".encode(),
        f"\x06run={ids[0]}&run={ids[1]}&run={ids[2]}&baseline={ids[1]}".encode(),
        b"\x01experiment=1&col=params.rows&col=metrics.auc&sort=-run_cpu_hours&group=component",
        b"\x02experiment=1&x=params.rows&y=metrics.auc&color=component&since=30d",
        b"\x03by=component&since=30d&experiment=1",
        b"\x04component=train&metric=duration_sec&param=rows&any_hardware=1",
    ]
    return Target(run, seeds, mutated_query)


def _serve(uri: str) -> None:
    import os

    from mlflow.server import (  # type: ignore[attr-defined]  # exported by MLflow 3.1, too
        BACKEND_STORE_URI_ENV_VAR,
        handlers,
    )

    os.environ[BACKEND_STORE_URI_ENV_VAR] = uri
    handlers._tracking_store = None  # MLflow has no other way to change it


def kernel() -> Target:
    """The files of procfs and of cgroups, one of them changed."""
    from tests.readers import trees

    from mlflow_perf.model.summary import RunningSummary
    from mlflow_perf.readers import open_readers
    from mlflow_perf.readers.disk import DiskIoReader
    from mlflow_perf.readers.job import JobSources
    from mlflow_perf.readers.memory import MemoryReader
    from mlflow_perf.readers.network import NetworkReader

    roots = []
    for make in (trees.docker_v2, trees.docker_v1, trees.kubernetes_v2, trees.slurm_v1):
        root = _scratch()
        proc = make(root)
        for name in ("stat", "diskstats", "net/dev", "net/route", "pressure/cpu", "loadavg"):
            if Path("/proc", name).is_file():
                with suppress(OSError):
                    trees.put(proc / name, Path("/proc", name).read_text())
        for name in ("stat", "io", "status"):
            trees.put(proc / "77" / name, Path("/proc/self", name).read_text())
        roots.append(root)
    files = [(root, path) for root in roots for path in sorted(root.rglob("*")) if path.is_file()]
    texts = [path.read_bytes() for _, path in files]

    def run(data: bytes) -> None:
        number = data[0] % len(files) if data else 0
        root, path = files[number]
        path.write_bytes(data[1:])
        try:
            _read_all(root)
        finally:
            path.write_bytes(texts[number])

    def _read_all(root: Path) -> None:
        proc = root / "proc"
        job = JobSources(77, proc=proc, root=root, environ={}, cpus=frozenset({0}))
        factories = (job.cpu, *job.others, lambda: MemoryReader(proc), lambda: NetworkReader(proc))
        factories += (lambda: DiskIoReader(proc),)
        summary = RunningSummary()
        readers = open_readers([(make,) for make in factories])
        for second in range(3):
            report = {"timestamp": float(second)}
            for reader in readers:
                # The sampler leaves out a source that fails, whatever it raises.
                with suppress(Exception):
                    reader.read(report)
            summary.add(report)
        for reader in readers:
            reader.close()
        _finite(summary.metrics())

    seeds = [bytes([number]) + text[:4000] for number, text in enumerate(texts)]
    return Target(run, seeds, mutated_lines)


def _finite(figures: Mapping[str, float]) -> None:
    odd = {key: value for key, value in figures.items() if not math.isfinite(value)}
    assert not odd, odd


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} in strict JSON")


def _lines_of_json(data: bytes, random: Random) -> bytes:
    lines = data.splitlines()
    at = random.randrange(len(lines))
    lines[at] = mutated_json(lines[at], random)
    return b"\n".join(lines) + b"\n"


def _scratch() -> Path:
    memory = Path("/dev/shm")  # a folder of its own within
    return Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))


def _recorded(pattern: str) -> bytes:
    """Return what a real block leaves behind under a name."""
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


def _json(data: bytes) -> dict[str, Any]:
    from mlflow_perf.core.json_io import from_json

    try:
        found = from_json(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_SCRAPED = b"""# TYPE queue gauge
queue{model="a"} 3
# TYPE requests counter
requests_total 10
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_bucket{le="0.1"} 1
vllm:nixl_xfer_time_seconds_bucket{le="+Inf"} 11
vllm:nixl_xfer_time_seconds_sum 1.5
vllm:nixl_xfer_time_seconds_count 11
# TYPE vllm:nixl_num_failed_transfers counter
vllm:nixl_num_failed_transfers_total 1
"""

_TRACES = [
    b"""{"traceEvents": [{"name": "a", "cat": "c", "ph": "X", "ts": 1, "dur": 5, "pid": 1, "tid": 2,
    "args": {"x": 1}}, {"name": "b", "ph": "B", "ts": 2, "pid": 1, "tid": 2}, {"ph": "E", "ts": 3,
    "pid": 1, "tid": 2}, {"ph": "i", "name": "i", "ts": 4, "pid": 1, "tid": 2}]}""",
    b"""{"resourceSpans": [{"resource": {"attributes": [{"key": "service.name", "value":
    {"stringValue": "s"}}]}, "scopeSpans": [{"spans":
    [{"traceId": "01", "spanId": "02", "name": "n",
    "parentSpanId": "", "startTimeUnixNano": "1763640000000000000", "endTimeUnixNano":
    "1763640001000000000", "attributes": [{"key": "k", "value": {"intValue": "5"}}], "events":
    [{"timeUnixNano": "1763640000500000000", "name": "e"}]}]}]}]}""",
    b"""{"schema": "mlflow-perf/1", "nodes": {"0": {"node": {"index": 0}, "component": "c",
    "started": 1763640000.0, "duration_sec": 2.0, "reports": {"timestamp": [1763640000.0]},
    "operations": {"times": {"a": {"count": 1,
    "total_ms": 1.0, "min_ms": 1.0, "max_ms": 1.0}}}}}}""",
]

TARGETS: dict[str, Callable[[], Target]] = {
    make.__name__: make
    for make in (
        document, analysis, workflow, operations, transfers, journal, spool, workqueue,
        metric_lines, traces, packed, parsl_run, databases, spans, scraped, environment, names,
        page, kernel, foreign.histories, foreign.machines, foreign.environments,
        foreign.pipelines, foreign.tools, foreign.stacks,
    )
}  # fmt: skip
