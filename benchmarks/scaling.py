"""How well the run time on other numbers of nodes is predicted from three of them.

`python -m benchmarks scaling --data FILE` reads the columns configuration, instance_count,
gross_runtime and algorithm. For each choice of three known counts all other counts are predicted.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import combinations

import numpy as np
from benchmarks._given_data import read_given_data

from mlflow_perf.analysis.scaling import fit


def main() -> int:
    """Print the mean relative error for each choice of known counts."""
    rows = read_given_data("run times by number of instances")
    if rows is None:
        return 0
    curves: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in rows:
        key = row["algorithm"], row["configuration"]
        curves[key][int(row["instance_count"])] = float(row["gross_runtime"])
    counts = sorted({count for curve in curves.values() for count in curve})
    print("target 6% mean error; perfect scaling is b/n through the smallest known count")
    print(f"{'known':>12} {'mean':>7} {'median':>7} {'perfect':>8} {'in interval':>12}")
    with_smallest: dict[bool, list[float]] = {True: [], False: []}
    for known in combinations(counts, 3):
        errors, perfect, inside = [], [], []
        for curve in curves.values():
            if not set(known) <= curve.keys():
                continue
            found = fit([(count, curve[count]) for count in known])
            for count in curve.keys() - set(known):
                errors.append(abs(found.predict(count) / curve[count] - 1))
                perfect.append(abs(curve[known[0]] * known[0] / count / curve[count] - 1))
                low, high = found.interval(count)
                inside.append(low <= curve[count] <= high)
        if errors:
            with_smallest[counts[0] in known] += errors
            name = ", ".join(map(str, known))
            means = [100 * float(np.mean(values)) for values in (errors, perfect, inside)]
            middle = 100 * float(np.median(errors))
            print(f"{name:>12} {means[0]:6.1f}% {middle:6.1f}% {means[1]:7.1f}% {means[2]:11.0f}%")
    for has_it, errors in with_smallest.items():
        if errors:
            name = f"{'with' if has_it else 'without'} the smallest count known"
            print(f"{name}: {100 * float(np.mean(errors)):.1f}% mean")
    return 0


if __name__ == "__main__":
    sys.exit(main())
