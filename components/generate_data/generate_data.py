"""Make a table of random features with a label, and split it into train and test."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from arguments import apply_common, parser

import mlflow_perf


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = parser(__doc__)
    made.add_argument("--rows", type=int, required=True)
    made.add_argument("--features", type=int, required=True)
    made.add_argument("--test-share", type=float, required=True)
    made.add_argument("--seed", type=int, required=True)
    made.add_argument("--data", type=Path, required=True)
    return made


def make_table(rows: int, features: int, seed: int) -> np.ndarray:
    """Return a table of shape (rows, 1 + features), float32, with the label 0 or 1 in column 0."""
    random = np.random.default_rng(seed)
    table = random.standard_normal((rows, features + 1), dtype=np.float32)
    score = table[:, 1] * table[:, 2] + np.sin(table[:, 1]) - table[:, -1]
    noise = random.standard_normal(rows, dtype=np.float32)
    table[:, 0] = score + 0.5 * noise > 0
    return table


def main() -> None:
    """Write train.npy and test.npy."""
    args = arguments().parse_args()
    with mlflow_perf.report("generate_data") as perf:
        apply_common(args, perf)
        with perf.time("make_table"):
            table = make_table(args.rows, args.features, args.seed)
        cut = round(args.rows * (1 - args.test_share))
        with perf.time("write"):
            args.data.mkdir(parents=True, exist_ok=True)
            np.save(args.data / "train.npy", table[:cut])
            np.save(args.data / "test.npy", table[cut:])
        perf.add_counter("rows", args.rows)


if __name__ == "__main__":
    main()
