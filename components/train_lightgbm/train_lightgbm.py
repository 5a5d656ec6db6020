"""Train LightGBM on one part of the rows per node; the nodes talk over LightGBM's sockets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightgbm as lgb
import machines
import numpy as np
from arguments import apply_common, parser

import mlflow_perf
from mlflow_perf.node.place import Node, detect


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = parser(__doc__)
    made.add_argument("--parts-data", type=Path, required=True)
    made.add_argument("--iterations", type=int, required=True)
    made.add_argument("--leaves", type=int, required=True)
    made.add_argument("--learning-rate", type=float, required=True)
    made.add_argument("--objective", required=True)
    made.add_argument("--port", type=int, required=True)
    made.add_argument("--model", type=Path, required=True)
    return made


def parameters(args: argparse.Namespace, node: Node) -> dict[str, Any]:
    """Return LightGBM's parameters, with the other ranks' addresses where there are some."""
    found: dict[str, Any] = {
        "objective": args.objective,
        "num_leaves": args.leaves,
        "learning_rate": args.learning_rate,
        "verbosity": 1 if args.verbose else -1,
        "num_threads": node.cpu_count,
        "seed": 7,
    }
    if node.world_size > 1:
        addresses, port = machines.find(
            node.rank, node.world_size, folder=args.model / ".machines", port=args.port
        )
        hosts = [address.rpartition(":")[0] for address in addresses]
        found |= {
            # Only ranks of the same machine share its CPUs.
            "num_threads": max(1, node.cpu_count // hosts.count(hosts[node.rank])),
            "tree_learner": "data",
            "pre_partition": True,
            "num_machines": node.world_size,
            "machines": ",".join(addresses),
            "local_listen_port": port,
            "time_out": 5,
        }
    return found


def main() -> None:
    """Train, and write model.txt from the first rank."""
    args = arguments().parse_args()
    with mlflow_perf.report("train_lightgbm") as perf:
        apply_common(args, perf)
        node = detect()
        with perf.time("load_data"):
            table = np.load(args.parts_data / f"part-{node.rank}.npy")
            data = lgb.Dataset(np.ascontiguousarray(table[:, 1:]), label=table[:, 0])
        with perf.time("connect"):
            found = parameters(args, node)
        with perf.time("train"):
            booster = lgb.train(found, data, num_boost_round=args.iterations)
        perf.add_counter("rows", len(table))
        if node.rank == 0:
            args.model.mkdir(parents=True, exist_ok=True)
            booster.save_model(args.model / "model.txt")


if __name__ == "__main__":
    main()
