"""How well steps in a metric's past are found, on the noise of freshly started cloud machines.

`python -m benchmarks changes --data FILE` reads the columns benchmark and value. Steps of 5 to 50%
are injected into stretches of each series. Apache Otava runs on the same steps where it is
installed (`pip install apache-otava`).
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence

from benchmarks._given_data import read_given_data

from mlflow_perf.analysis.history import change_points

TOLERANCE = 2
STEPS = (1.05, 1.1, 1.2, 1.3, 1.5, 1 / 1.05, 1 / 1.1, 1 / 1.2, 1 / 1.5)

Finder = Callable[[Sequence[float]], list[int]]
Case = tuple[list[float], list[int]]


def inject_steps(series: Sequence[float], chance: random.Random) -> Case:
    """Return a stretch of a series with up to three steps, and where each begins."""
    count = chance.choice((30, 60, 120, 200))
    start = chance.randrange(len(series) - count)
    values = list(series[start : start + count])
    room = count // 4
    steps = sorted(
        {room * (i + 1) + chance.randrange(-4, 5) for i in range(chance.choice((0, 1, 2, 3)))}
    )
    for step in steps:
        factor = chance.choice(STEPS)
        values[step:] = [value * factor for value in values[step:]]
    return values, steps


def score(find: Finder, cases: Sequence[Case]) -> str:
    """Return precision, recall and F1, where a step is found within the tolerance."""
    right = found = true = 0
    for values, steps in cases:
        changes = find(values)
        found, true = found + len(changes), true + len(steps)
        for step in steps:
            near = [change for change in changes if abs(change - step) <= TOLERANCE]
            if near:
                right += 1
                changes.remove(near[0])
    precision, recall = right / max(found, 1), right / max(true, 1)
    return f"{precision:9.3f} {recall:7.3f} {2 * right / max(found + true, 1):6.3f}"


def main() -> int:
    """Print the table."""
    rows = read_given_data("repeated benchmarks on fresh machines")
    if rows is None:
        return 0
    series = defaultdict(list)
    for row in rows:
        series[row["benchmark"]].append(float(row["value"]))
    chance = random.Random(11)
    cases = [inject_steps(values, chance) for values in series.values() for _ in range(8)]
    finders: dict[str, Finder] = {"mlflow-perf": change_points}
    try:
        from otava.analysis import compute_change_points  # type: ignore[import-not-found]
    except ImportError:
        print("Apache Otava is not installed here, so its row is missing.")
    else:

        def find_with_otava(values: Sequence[float]) -> list[int]:
            found, _ = compute_change_points(
                list(values), window_len=50, max_pvalue=0.001, min_magnitude=0.0
            )
            return [int(change.index) for change in found]

        finders["Apache Otava"] = find_with_otava
    print(f"{len(cases)} series, tolerance {TOLERANCE} values (target: F1 of Otava or more)")
    print(f"{'':14} {'precision':>9} {'recall':>7} {'F1':>6}")
    for name, find in finders.items():
        print(f"{name:14} {score(find, cases)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
