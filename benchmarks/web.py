"""How long the pages below `/perf` take in a large store, on sqlite and on PostgreSQL.

`python -m benchmarks web [--runs N] [--store URI …] [--only PAGE …]` fills stores of its own,
or the empty ones at the addresses, and starts `mlflow server --app-name mlflow-perf` on each.
It prints, of each page, the first answer, the shortest of three further ones, the size, and the
longest wait of requests to MLflow's own API meanwhile, writes included. Ten runs with curves
(1,000 reports each, uploaded through the server) are compared. Targets: 1 s for 1,000 runs, 2 s
for 100,000 and for the comparison; no page above 2 MB. PostgreSQL needs Debian's package and
`psycopg2`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from benchmarks._timing import best_of
from benchmarks._web_store import PARAMS, fill, run_postgres
from tests.reports import html_samples
from tests.web.web_store import Filled, get, server

from mlflow_perf.analysis.phases import find_phases

_COMPARED, _REPORTS = 10, 1000
_MANY = 5000
_TARGET_MB = 2.0
_NO_PAGE = "CSV of 10,000 runs"
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
    "sort by a parameter": [("sort", "params.param_4")],
    "a page of workflows": [("sort", "params.param_3")],
    "sort by time": [("sort", "started")],
    "grouped": [("group", "params.param_3"), ("since", "30d")],
}
OTHERS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    _NO_PAGE: ("/runs.csv", []),
    "scatter plot": ("/scatter", [("x", "params.param_1"), ("y", "run_cost")]),
    "overview": ("/fleet", []),
    "overview of a year, by user": ("/fleet", [("by", "user"), ("since", "365d")]),
    "trends": ("/trend", []),
    "component's history": ("/trend", [("component", "train 7")]),
}


def wait_beside(address: str, path: str, run_id: str) -> float:
    """Return the longest wait of MLflow's own requests while a page is made, in seconds.

    Args:
        address: The server.
        path: The page.
        run_id: A run to which metrics are written meanwhile; one is read in turn.
    """
    api = f"{address}/api/2.0/mlflow/runs"
    metric = {"run_id": run_id, "key": "beside", "value": 1.0, "timestamp": 1}
    page = threading.Thread(target=get, args=(address + path,))
    longest = 0.0
    page.start()
    while page.is_alive():
        time.sleep(0.02)
        for ask in (
            partial(get, f"{api}/get?run_id={run_id}"),
            partial(get, f"{api}/log-metric", method="POST", data=json.dumps(metric).encode()),
        ):
            began = time.perf_counter()
            ask()
            longest = max(longest, time.perf_counter() - began)
    return longest


def measure(name: str, uri: str, count: int, only: Sequence[str]) -> bool:
    """Print the rows of one store, of all pages or a few; return whether every target is met."""
    is_met = True
    print(
        f"{'store':10} {'page':28} {'first':>6} {'usual':>6}   {'size':>6}   the API's longest wait"
    )
    with _serve(uri) as address:
        compared = _add_compared(address)
        parents = _list_workflows(uri)
        pages = {label: f"/perf?{urlencode(query)}" for label, query in PAGES.items()}
        pages |= {k: f"/perf{path}?{urlencode(query)}" for k, (path, query) in OTHERS.items()}
        pages["steps of a workflow"] = f"/perf?workflow={parents[0]}"
        pages["a workflow"] = f"/perf/run?id={parents[0]}"
        pages["a run with curves"] = f"/perf/run?id={compared[0]}"
        pages["ten runs with curves"] = f"/perf/compare?{urlencode([('run', i) for i in compared])}"
        for label, path in pages.items():
            if only and label not in only:
                continue
            began = time.perf_counter()
            status, text = get(address + path)
            first = time.perf_counter() - began
            assert status == 200, text[:2000]
            took = best_of(3, partial(get, address + path))
            size, waited = len(text.encode()) / 1e6, wait_beside(address, path, compared[0])
            target = 1.0 if count <= _MANY and label.startswith("list") else 2.0
            missed = label != _NO_PAGE and (took > target or size > _TARGET_MB)
            is_met = is_met and not missed
            print(
                f"{name:10} {label:28} {first:6.2f} {took:6.2f} s {size:6.2f} MB  API {waited:5.2f}"
                f" s{'  MISSED' if missed else ''}",
                flush=True,
            )
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
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient
    from mlflow.entities import RunTag

    client, made = MlflowClient(address), []
    name = f"curves {time.time():.0f}"
    experiment = client.create_experiment(name)
    for index in range(_COMPARED):
        run_id = client.create_run(experiment, run_name=f"run {index}").info.run_id
        document = html_samples.document(rows=_REPORTS)
        node = document.nodes[0]
        node.run_id, node.component = run_id, "curves"
        node.reports |= dict.fromkeys(("x", "y"), node.reports["cpu_pct_per_cpu_avg"])
        node.extra["phases"] = [phase.as_dict() for phase in find_phases(node)]
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
    parser.add_argument("--only", action="append", help="a page, by its name in the table")
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
            met.append(
                measure(
                    uri.partition(":")[0].partition("+")[0], uri, options.runs, options.only or []
                )
            )
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
