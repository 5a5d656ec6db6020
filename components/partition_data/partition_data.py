"""Deal the rows of a table to several parts, one per training node."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from arguments import apply_common, parser

import mlflow_perf


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = parser(__doc__)
    made.add_argument("--data", type=Path, required=True)
    made.add_argument("--parts", type=int, required=True)
    made.add_argument("--parts-data", type=Path, required=True)
    return made


def main() -> None:
    """Write part-<i>.npy for each part."""
    args = arguments().parse_args()
    with mlflow_perf.report("partition_data") as perf:
        apply_common(args, perf)
        with perf.time("read"):
            table = np.load(args.data / "train.npy", mmap_mode="r")
        args.parts_data.mkdir(parents=True, exist_ok=True)
        for part in range(args.parts):
            with perf.time("write_part"):
                np.save(args.parts_data / f"part-{part}.npy", table[part :: args.parts])
            perf.add_counter("parts", 1)


if __name__ == "__main__":
    main()
