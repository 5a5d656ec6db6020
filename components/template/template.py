"""Say here what the component does."""

import argparse
from pathlib import Path

import mlflow_perf


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    return parser


if __name__ == "__main__":
    args = arguments().parse_args()
    with mlflow_perf.report() as perf, perf.time("work"):
        found = sorted(path.name for path in args.data.iterdir())  # your own work goes here
        (args.result / "names.txt").write_text("\n".join(found))
