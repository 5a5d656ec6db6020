"""Resolve the proxies of the previous step in worker processes."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

from arguments import apply_common, parser
from proxystore.connectors.file import FileConnector
from proxystore.store import Store

import mlflow_perf


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = parser(__doc__)
    made.add_argument("--store", type=Path, required=True)
    made.add_argument("--proxies", type=Path, required=True)
    made.add_argument("--workers", type=int, required=True)
    made.add_argument("--result", type=Path, required=True)
    return made


def open_store(folder: Path) -> None:
    """Register the store in this process; the proxies find it by its name."""
    Store("demo", FileConnector(str(folder)), metrics=True, register=True)


def mean(proxy: Any) -> float:
    """Return the mean of an array; its first use here, in the worker, fetches it."""
    return float(proxy.mean())


def main() -> None:
    """Resolve the proxies and write the means; the run also gets the workers' store metrics."""
    args = arguments().parse_args()
    with mlflow_perf.report("proxy_consume") as perf:
        apply_common(args, perf)
        with (args.proxies / "proxies.pickle").open("rb") as file:
            proxies = pickle.load(file)  # noqa: S301 - written by the previous step
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(args.workers, open_store, (args.store,)) as pool, perf.time("consume"):
            means = pool.map(mean, proxies)
        args.result.mkdir(parents=True, exist_ok=True)
        (args.result / "means.json").write_text(json.dumps(means), encoding="utf-8")


if __name__ == "__main__":
    main()
