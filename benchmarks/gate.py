"""How often the gate is wrong on the noise of freshly started cloud machines.

`python -m benchmarks gate --data FILE` reads the columns benchmark, better, position and value. Ten
runs are the base, one is judged, at a limit of 10%; where the judgement asks for more runs it gets
them, up to four times.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from benchmarks._given_data import read_given_data

from mlflow_perf.analysis.gate import judge

BASE, SPARE, DRAWS, ROUNDS = 10, 50, 60, 4
SLOWER, FALSE_MAX = 1.3, 0.01


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
    best = bound_one_run([(series, better == "lower") for (_, better), series in values.items()])
    print(
        f"No rule on one run finds more than {best:.1%} of +30% with 1% of unchanged runs failed."
    )
    return 0


def bound_one_run(benchmarks: Sequence[tuple[Sequence[float], bool]]) -> float:
    """Return the share of +30% that the best limits find which let 1% of unchanged runs fail.

    Each benchmark gets the limit of its own that finds the most, chosen with its whole noise known,
    so a rule that sees only ten runs of it finds less.

    Args:
        benchmarks: The values of each, and whether lower ones are better.
    """
    shares = []
    for series, is_lower in benchmarks:
        logs = np.sort(np.log(series) if is_lower else -np.log(series))
        limits = np.concatenate([logs, logs + np.log(SLOWER)])
        false = 1 - np.searchsorted(logs, limits, "right") / len(logs)
        found = 1 - np.searchsorted(logs + np.log(SLOWER), limits, "right") / len(logs)
        shares.append((false, found))
    low, high = 0.0, 1e6  # the price of a false alarm, in alarms that are right
    for _ in range(60):
        price = (low + high) / 2
        chosen = [(false[i], found[i]) for false, found in shares
                  for i in [int(np.argmax(found - price * false))]]  # fmt: skip
        false_mean, found_mean = np.mean(chosen, axis=0)
        low, high = (price, high) if false_mean > FALSE_MAX else (low, price)
    return float(found_mean + price * (FALSE_MAX - false_mean))


if __name__ == "__main__":
    sys.exit(main())
