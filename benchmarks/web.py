"""How long the pages below `/perf` take in a large store, on sqlite and on PostgreSQL.

`python -m benchmarks web [--runs N] [--store URI …]` fills stores of its own, or the empty ones at
the addresses, and starts `mlflow server --app-name mlflow-perf` on each. It prints, of each page,
the first answer, the shortest of three further ones, the size, and the longest wait of requests to
MLflow's own API meanwhile. Ten runs with curves (1,000 reports each, uploaded through the server)
are compared. Targets: 1 s for 1,000 runs, 2 s for 100,000 and for the comparison; no page above
2 MB. PostgreSQL needs Debian's package and `psycopg2`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlencode

from benchmarks._timing import best_of
from benchmarks._web_store import PARAMS, fill, run_postgres
from tests.reports import html_samples
from tests.web.web_store import Filled, get, server

_COMPARED, _REPORTS = 10, 1000
_MANY = 5000
_TARGET_MB = 2.0
_TEN = [("col", f"params.param_{n}") for n in range(PARAMS)]
PAGES: dict[str, list[tuple[str, str]]] = {
    "list": [],
    "list, ten parameters": _TEN,
    "page 2": [("page", "1000")],
    "text search": [("q", "run-9")],
    "condition": [("filter", "metrics.run_cpu_hours > 1")],
    "component and status": [("component", "train 7"), ("status", "FINISHED")],
    "sort by a metric": [("sort", "-run_cpu_hours")],
    "sort by auc": [("sort", "-metrics.auc")],
    "sort by a parameter": [("sort", "params.param_3")],
    "sort by time": [("sort", "started")],
    "grouped": [("group", "params.param_3"), ("since", "30d")],
}
OTHERS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "CSV": ("/runs.csv", []),
    "scatter plot": ("/scatter", [("x", "params.param_1"), ("y", "run_cost")]),
    "overview": ("/fleet", []),
    "overview of a year, by user": ("/fleet", [("by", "user"), ("since", "365d")]),
    "trends": ("/trend", []),
    "component's history": ("/trend", [("component", "train 7")]),
}


class _Api(threading.Thread):
    """Asks MLflow's own API again and again, and keeps the longest wait since the last look."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = f"{address}/api/2.0/mlflow/experiments/get?experiment_id=0"
        self._ended = threading.Event()
        self._longest = 0.0

    def run(self) -> None:
        while not self._ended.wait(0.02):
            began = time.perf_counter()
            get(self._address)
            self._longest = max(self._longest, time.perf_counter() - began)

    def take_longest(self) -> float:
        longest, self._longest = self._longest, 0.0
        return longest

    def end(self) -> None:
        self._ended.set()
        self.join()


def measure(name: str, uri: str, count: int) -> bool:
    """Print the rows of one store; return whether every target is met."""
    is_met = True
    with _serve(uri) as address:
        compared = _add_compared(address)
        parents = _list_workflows(uri)
        pages = {label: f"/perf?{urlencode(query)}" for label, query in PAGES.items()}
        pages |= {k: f"/perf{path}?{urlencode(query)}" for k, (path, query) in OTHERS.items()}
        pages["steps of a workflow"] = f"/perf?workflow={parents[0]}"
        pages["a workflow"] = f"/perf/run?id={parents[0]}"
        pages["a run with curves"] = f"/perf/run?id={compared[0]}"
        pages["ten runs with curves"] = f"/perf/compare?{urlencode([('run', i) for i in compared])}"
        api = _Api(address)
        api.start()
        for label, path in pages.items():
            api.take_longest()
            began = time.perf_counter()
            status, text = get(address + path)
            first = time.perf_counter() - began
            assert status == 200, text[:2000]
            took = best_of(3, lambda path=path: get(address + path))  # type: ignore[misc]
            size, waited = len(text.encode()) / 1e6, api.take_longest()
            target = 1.0 if count <= _MANY and label.startswith("list") else 2.0
            missed = took > target or (size > _TARGET_MB and label != "CSV")
            is_met = is_met and not missed
            print(
                f"{name:10} {label:28} {first:6.2f} {took:6.2f} s {size:6.2f} MB  API {waited:5.2f}"
                f" s  ≤ {target:g} s{'  MISSED' if missed else ''}",
                flush=True,
            )
        api.end()
    return is_met


@contextmanager
def _serve(uri: str) -> Iterator[str]:
    """Run MLflow's server with the page on a store; its artifacts go through the server."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--artifacts-destination", f"{folder}/artifacts")
        with server(Filled(uri, {}, {}), Path(folder), *options) as address:
            yield address


def _add_compared(address: str) -> list[str]:
    """Upload runs with curves through the server and return their ids."""
    from mlflow import MlflowClient
    from mlflow.entities import RunTag

    client, made = MlflowClient(address), []
    name = f"curves {time.time():.0f}"
    experiment = client.create_experiment(name)
    for index in range(_COMPARED):
        run_id = client.create_run(experiment, run_name=f"run {index}").info.run_id
        document = html_samples.document(rows=_REPORTS)
        document.nodes[0].run_id, document.nodes[0].component = run_id, "curves"
        with tempfile.TemporaryDirectory() as folder:
            document.save(Path(folder) / "node-0.json")
            client.log_artifacts(run_id, folder, "perf")
        client.log_batch(run_id, tags=[RunTag("mlflow_perf.component", "curves")])
        client.set_terminated(run_id)
        made.append(run_id)
    return made


def _list_workflows(uri: str) -> list[str]:
    """Return the ids of some workflows."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("bench 0")
    assert experiment is not None
    query = "tags.mlflow_perf.pipeline = 'flow'"
    return [
        run.info.run_id
        for run in client.search_runs([experiment.experiment_id], query, max_results=3)
    ]


def main() -> int:
    """Print the table; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks web", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--store", action="append", help="an empty store, or one filled before")
    options = parser.parse_args()
    met = []
    with ExitStack() as stack:
        stores: list[str | None] = options.store
        if not stores:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stores = [f"sqlite:///{folder}/mlflow.db", stack.enter_context(run_postgres())]
        for uri in stores:
            if uri is None:
                print("PostgreSQL is not installed (Debian: postgresql)")
                continue
            fill(uri, options.runs)
            met.append(measure(uri.partition(":")[0].partition("+")[0], uri, options.runs))
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
