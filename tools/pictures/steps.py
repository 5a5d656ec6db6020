"""The steps of the pipeline of the docs' pictures."""

from __future__ import annotations

import argparse
import csv
import os
import random
import time
from datetime import datetime
from pathlib import Path

# Idle threads of OpenMP spin: two ranks on two CPUs would be in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightgbm as lgb
import numpy as np

import mlflow_perf

_ROUNDS = 120
_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def write_events(path: Path, rows: int) -> None:
    """Write events at random times, each with eight figures."""
    rng = random.Random(3)  # noqa: S311
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        for _ in range(rows):
            day = f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
            clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:00"
            writer.writerow([f"{day} {clock}", *(round(rng.random(), 4) for _ in range(8))])


def parse_dates(texts: list[str], parser: str) -> np.ndarray:
    """Return Unix times; `strptime` is ten times as slow as `fromisoformat`."""
    if parser == "strptime":
        return np.array([datetime.strptime(t, "%Y-%m-%d %H:%M:%S").timestamp() for t in texts])
    return np.array([datetime.fromisoformat(text).timestamp() for text in texts])


def prepare(args: argparse.Namespace) -> None:
    """Make features of events."""
    out = Path(args.out)
    with mlflow_perf.report("prepare", interval=0.5) as perf:
        with perf.time("write events"):
            write_events(out / "events.csv", args.rows)
        with perf.time("read"):
            rows = list(csv.reader((out / "events.csv").open()))
        with perf.time("parse dates"):
            times = parse_dates([row[0] for row in rows], args.parser)
        with perf.time("build features"):
            table = np.array([[float(x) for x in row[1:]] for row in rows])
            waves = [np.sin(k * table) * np.cos(times[:, None] / 86400) for k in range(1, 7)]
        with perf.time("save"):
            x = np.hstack([table, *waves])
            noise = np.random.default_rng(0).normal(size=len(x))
            np.save(out / "x.npy", x)
            np.save(out / "y.npy", (table.sum(1) + 0.3 * noise > 4).astype(float))


def train(args: argparse.Namespace) -> None:
    """Train a model on a share of the rows; the last rank has twice the work of the others."""
    rank = int(next(os.environ[name] for name in _RANK if name in os.environ))
    with mlflow_perf.report("train", interval=0.5) as perf:
        with perf.time("load"):
            x, y = (np.load(Path(args.data) / f"{name}.npy")[rank::2] for name in "xy")
        with perf.time("bin"):
            data = lgb.Dataset(x, y, params={"verbose": -1}).construct()
        params = {"objective": "binary", "num_leaves": args.leaves, "num_threads": 1, "verbose": -1}
        booster = lgb.Booster(params, data)
        for _ in mlflow_perf.steps(range(_ROUNDS * (2 if rank == 1 else 1)), name="round"):
            with mlflow_perf.part("boost"):
                booster.update()
            with mlflow_perf.part("evaluate"):
                booster.predict(x[:20000])
        with perf.time("save"):
            booster.save_model(str(Path(args.out) / f"model{rank}.txt"))


def use_model(args: argparse.Namespace) -> None:
    """Score all rows and send them to a slow service, or explain some of them."""
    with mlflow_perf.report(args.step, interval=0.5) as perf:
        x = np.load(Path(args.data) / "x.npy")
        model = lgb.Booster(model_file=str(Path(args.model) / "model0.txt"))
        if args.step == "explain":
            with perf.time("contributions"):
                model.predict(x[:2000], pred_contrib=True, num_threads=1)
        else:
            with perf.time("predict"):
                model.predict(x, num_threads=1)
            for _ in range(20):
                with perf.time("send"):
                    time.sleep(0.6)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("step")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--leaves", type=int)
    for name in ("parser", "data", "model", "out"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args()
    {"prepare": prepare, "train": train}.get(given.step, use_model)(given)
