"""Predict a table with a trained model and log the area under the ROC curve."""

from __future__ import annotations

import argparse
from pathlib import Path

import lightgbm as lgb
import numpy as np
from arguments import apply_common, log_to_run, parser

import mlflow_perf


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = parser(__doc__)
    made.add_argument("--data", type=Path, required=True)
    made.add_argument("--model", type=Path, required=True)
    made.add_argument("--predictions", type=Path, required=True)
    return made


def area_under_curve(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the share of pairs (a 1, a 0) that the scores order rightly; ties count half."""
    _, ranks, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    positive = labels > 0.5
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return float("nan")
    return float((middle[ranks][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def main() -> None:
    """Write the predictions and log `auc`."""
    args = arguments().parse_args()
    with mlflow_perf.report("score") as perf:
        apply_common(args, perf)
        with perf.time("load"):
            table = np.load(args.data / "test.npy")
            booster = lgb.Booster(model_file=args.model / "model.txt")
        with perf.time("predict"):
            scores = np.asarray(booster.predict(table[:, 1:]))
        args.predictions.parent.mkdir(parents=True, exist_ok=True)
        with args.predictions.open("wb") as file:
            np.save(file, scores)
        auc = area_under_curve(table[:, 0], scores)
        perf.add_attribute("auc", auc)
    if np.isfinite(auc):
        log_to_run(perf, metrics={"auc": auc})
    print(f"auc {auc:.4f} on {len(table)} rows")


if __name__ == "__main__":
    main()
