"""Make arrays, put them into a ProxyStore store, and pass on proxies instead of the data."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path

import numpy as np
from arguments import apply_common, parser
from proxystore.connectors.file import FileConnector
from proxystore.store import Store

import mlflow_perf


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = parser(__doc__)
    made.add_argument("--objects", type=int, required=True)
    made.add_argument("--object-kb", type=int, required=True)
    made.add_argument("--seed", type=int, required=True)
    made.add_argument("--store", type=Path, required=True)
    made.add_argument("--proxies", type=Path, required=True)
    return made


def main() -> None:
    """Fill the store; the run gets its metrics, because they are on."""
    args = arguments().parse_args()
    with mlflow_perf.report("proxy_produce") as perf:
        apply_common(args, perf)
        numbers = np.random.default_rng(args.seed)
        args.proxies.mkdir(parents=True, exist_ok=True)
        # Not closed: closing a file connector deletes its objects, and the next step needs them.
        store = Store("demo", FileConnector(str(args.store)), metrics=True, register=True)
        with perf.time("produce"):
            arrays = (numbers.random(args.object_kb * 128) for _ in range(args.objects))
            proxies = [store.proxy(array, populate_target=False) for array in arrays]
        with (args.proxies / "proxies.pickle").open("wb") as file:
            pickle.dump(proxies, file)


if __name__ == "__main__":
    main()
