"""How often the gate is wrong on the noise of freshly started cloud machines.

`python -m benchmarks gate --data FILE` reads the columns benchmark, better, position and value. Ten
runs are the base, one is judged, at a limit of 10%; where the judgement asks for more runs it gets
them, up to four times.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict

import numpy as np
from benchmarks._given_data import read_given_data

from mlflow_perf.analysis.gate import judge

BASE, SPARE, DRAWS, ROUNDS = 10, 50, 60, 4


def main() -> int:
    """Print the shares of failed judgements for unchanged and for slower runs."""
    rows = read_given_data("repeated benchmarks on fresh machines")
    if rows is None:
        return 0
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        values[row["benchmark"], row["better"]].append(float(row["value"]))
    chance = np.random.default_rng(2)
    print("ten runs against one, limit 10% (targets: unchanged <= 1% failed, +30% >= 90% failed)")
    print(f"{'change':>8} {'one run':>9} {'asks':>8} {'after asking':>13} {'runs':>6}")
    for factor in (1.0, 1.2, 1.3):
        count: Counter[str] = Counter()
        for (_, better), series in values.items():
            for _ in range(DRAWS):
                drawn = [float(v) for v in chance.choice(series, BASE + SPARE, replace=False)]
                worse = factor if better == "lower" else 1 / factor
                base, later = drawn[:BASE], [value * worse for value in drawn[BASE:]]
                runs = 1
                found = judge(base, later[:1], limit_pct=10.0, better=better)
                count["one"] += not found.passed
                count["asks"] += found.more_runs > 0
                for _ in range(ROUNDS):
                    if not found.more_runs or runs + found.more_runs > SPARE:
                        break
                    runs += found.more_runs
                    found = judge(base, later[:runs], limit_pct=10.0, better=better)
                count["in the end"] += not found.passed
                count["runs"] += runs
        total = len(values) * DRAWS
        one, asks, end = (100 * count[name] / total for name in ("one", "asks", "in the end"))
        mean = count["runs"] / total
        print(f"{factor - 1:+8.0%} {one:8.2f}% {asks:7.1f}% {end:12.2f}% {mean:6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
