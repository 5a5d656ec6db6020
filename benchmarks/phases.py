"""How well levels are found, beside ruptures: made jobs of known phases, and annotated series.

`python -m benchmarks phases [--data FOLDER]` prints a table. FOLDER is a checkout of
github.com/alan-turing-institute/TCPD (van den Burg and Williams, "An evaluation of change point
detection algorithms", 2020): series with the changes that five people saw in each. Every method
gets a series once, with the settings that it has by default.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from mlflow_perf.analysis.levels import split_levels

Method = Callable[[Sequence[Sequence[float]]], list[int]]
Found = tuple[list[int], Sequence[Sequence[int]], int]
"""Cuts that were found, cuts that each annotator sees, length of the series."""

MARGIN = 5  # samples, as in the paper
NOISES = (0.02, 0.1, 0.2)


def cut_with_ours(curves: Sequence[Sequence[float]]) -> list[int]:
    count = len(curves[0])
    return [round(cut) for cut in split_levels(range(count + 1), curves, 12)]


def list_methods() -> dict[str, Method]:
    """Return the methods by name; ruptures' only where it is installed."""
    methods: dict[str, Method] = {"no cut": lambda _: [], "ours": cut_with_ours}
    try:
        import numpy as np
        import ruptures
    except ImportError:
        print("ruptures is not installed: pip install ruptures")
        return methods

    def use(search: Callable[..., object], model: str, scale: float) -> Method:
        def cut(curves: Sequence[Sequence[float]]) -> list[int]:
            signal = np.array(curves).T
            # The noise from the differences, and BIC's penalty: what its documentation advises.
            steps = np.median(np.abs(np.diff(signal, axis=0)), axis=0) / 0.954
            noise = float(max(np.mean(steps**2), 1e-6)) if model == "l2" else 1.0
            penalty = scale * signal.shape[1] * math.log(len(signal)) * noise
            algorithm = search(model=model, min_size=2, jump=1).fit(signal)  # type: ignore[attr-defined]
            return [int(one) for one in algorithm.predict(pen=penalty)][:-1]

        return cut

    methods["ruptures, PELT l2"] = use(ruptures.Pelt, "l2", 2.0)
    methods["ruptures, binary segmentation l2"] = use(ruptures.Binseg, "l2", 2.0)
    methods["ruptures, PELT rbf"] = use(ruptures.Pelt, "rbf", 1.0)
    return methods


def count_hits(truth: Sequence[int], found: Sequence[int]) -> int:
    """Return how many true cuts were found, each by another one at most MARGIN samples away."""
    left, hits = sorted(found), 0
    for cut in sorted(truth):
        near = [one for one in left if abs(one - cut) <= MARGIN]
        if near:
            left.remove(min(near, key=lambda one: abs(one - cut)))
            hits += 1
    return hits


def score_f1(found: Found) -> float:
    """Return F1 as the paper has it: the series' begin is a cut that everybody sees."""
    cuts, annotators, _ = found
    own = {0, *cuts}
    everyone = {0, *(cut for one in annotators for cut in one)}
    precision = count_hits(sorted(everyone), sorted(own)) / len(own)
    recalls = [count_hits([0, *one], sorted(own)) / len({0, *one}) for one in annotators]
    recall = statistics.fmean(recalls)
    return 2 * precision * recall / (precision + recall)


def score_cover(found: Found) -> float:
    """Return how well the pieces cover those of the annotators, on average: at most 1."""
    cuts, annotators, count = found

    def list_pieces(edges: Sequence[int]) -> list[tuple[int, int]]:
        every = sorted({0, count, *(edge for edge in edges if 0 < edge < count)})
        return list(pairwise(every))

    def share(one: tuple[int, int], other: tuple[int, int]) -> float:
        both = max(0, min(one[1], other[1]) - max(one[0], other[0]))
        return both / (one[1] - one[0] + other[1] - other[0] - both)

    own = list_pieces(cuts)
    return statistics.fmean(
        sum((b - a) * max(share((a, b), piece) for piece in own) for a, b in list_pieces(seen))
        / count
        for seen in annotators
    )


def make_jobs(noise: float) -> Iterator[tuple[list[list[float]], list[list[int]]]]:
    """Yield curves of CPUs and memory, in units worth a cut, of jobs with one to seven phases."""
    dice = random.Random(7)
    for _ in range(60):
        lengths = [dice.randint(12, 60) for _ in range(dice.randint(1, 7))]
        cpus, memory, cuts, level = [], [], [0], -1.0
        for length in lengths:
            level = dice.choice([one for one in (0.0, 1.0, 2.0, 4.0, 8.0) if one != level])
            held = dice.choice((1.0, 2.0, 6.0))
            cpus += [max(0.0, dice.gauss(level, noise * level + 0.02)) / 0.8 for _ in range(length)]
            memory += [held + dice.gauss(0.0, 0.02) for _ in range(length)]
            cuts.append(cuts[-1] + length)
        yield [cpus, memory], [cuts[1:-1]]


def read_series(folder: Path) -> Iterator[tuple[list[list[float]], list[list[int]]]]:
    """Yield the annotated series that the checkout holds, with mean 0 and deviation 1."""
    annotations = json.loads((folder / "annotations.json").read_text(encoding="utf-8"))
    for path in sorted(folder.glob("datasets/*/*.json")):
        seen = annotations.get(path.stem)
        if not seen:
            continue
        curves = []
        for series in json.loads(path.read_text(encoding="utf-8"))["series"]:
            values, last = [], 0.0
            for value in series["raw"]:
                last = last if value is None else float(value)
                values.append(last)
            spread = statistics.pstdev(values) or 1.0
            mean = statistics.fmean(values)
            curves.append([(value - mean) / spread for value in values])
        yield curves, list(seen.values())


def print_rows(
    what: str,
    methods: dict[str, Method],
    series: Sequence[tuple[list[list[float]], list[list[int]]]],
) -> None:
    for name, method in methods.items():
        begin = time.process_time()
        found: list[Found] = [(method(curves), seen, len(curves[0])) for curves, seen in series]
        took = time.process_time() - begin
        f1, cover = (statistics.fmean(map(score, found)) for score in (score_f1, score_cover))
        speed = f"{1e3 * took / len(series):.1f} ms"
        print(f"| {what} | {name} | {f1:.3f} | {cover:.3f} | {speed} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    folder = parser.parse_args().data
    methods = list_methods()
    print(
        "| series | method | F1 | covering | CPU per series |\n| --- | --- | ---: | ---: | ---: |"
    )
    for noise in NOISES:
        print_rows(f"60 made jobs, noise {noise:.0%}", methods, list(make_jobs(noise)))
    if folder is not None:
        series = list(read_series(folder))
        if not series:
            raise SystemExit(f"{folder} has no annotations.json with datasets/*/*.json beside it.")
        print_rows(f"{len(series)} of TCPD", methods, series)


if __name__ == "__main__":
    main()
