"""Describes the steps of a loop, and changes of their parts, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mlflow_perf.analysis.step_causes import read_loops
from mlflow_perf.core.format import format_change, format_count, quantity
from mlflow_perf.tracking.perf_run import PerfRun

if TYPE_CHECKING:
    from mlflow_perf.recorders.steps.stats import LoopRecord

_MOST_PARTS = 8
_LEAST_CHANGE = 0.05  # single runs vary by as much


def describe_loop(name: str, ranks: Mapping[int, LoopRecord]) -> str:
    """Return a loop in one sentence: number of steps, median, and the parts of a mean step."""
    from mlflow_perf.recorders.steps.stats import sum_ranks  # slow, and rarely needed

    whole = sum_ranks(ranks)
    p50, p95 = whole.step.percentiles((50, 95))
    counts = sorted(record.step.count for record in ranks.values())
    is_same = counts[0] == counts[-1]
    steps = ("" if is_same else f"{counts[0]:,} to ") + format_count(counts[-1], "step")
    of_ranks = f" on each of {len(ranks)} ranks" if len(ranks) > 1 else ""
    shares = whole.divide()
    total = whole.step.mean_ms or 1.0  # parts of tasks side by side are more than that together
    made_of = ", ".join(
        f"{part} {100 * value / total:.0f}%"
        for part, value in sorted(shares.items(), key=lambda item: -item[1])[:_MOST_PARTS]
        if value >= 0.005 * total
    )
    return (
        f"{name}: {steps}{of_ranks}, median {quantity(p50, 'ms')}, "
        f"95% within {quantity(p95, 'ms')}: {made_of}"
    )


def describe_step_changes(runs: Sequence[PerfRun | None]) -> Iterator[str]:
    """Yield for each loop how its steps changed from the first run to the last, and in which part.

    Args:
        runs: The same component in each of the compared runs, with its document; None for a run
            that does not have it.
    """
    from mlflow_perf.recorders.steps.stats import sum_ranks

    first, last = (
        {} if run is None or run.document is None else read_loops(run.document.nodes.values())
        for run in (runs[0], runs[-1])
    )
    for name in first.keys() & last.keys():
        old, new = sum_ranks(first[name]), sum_ranks(last[name])
        before, after = old.step.mean_ms, new.step.mean_ms
        if not before or not after:
            continue
        was, became = old.divide(), new.divide()
        grown = {part: became.get(part, 0.0) - was.get(part, 0.0) for part in {**was, **became}}
        ranked = sorted(grown.items(), key=lambda item: -abs(item[1]))
        parts = [
            f"{part} {'+' if change > 0 else '−'}{quantity(abs(change), 'ms')}"
            for part, change in ranked[:_MOST_PARTS]
            if abs(change) > _LEAST_CHANGE * before
        ]
        if parts:
            change = format_change(100 * (after - before) / before)
            took = f"{quantity(before, 'ms')} → {quantity(after, 'ms')}"
            yield f"A step of the loop {name} took {took} ({change}): {', '.join(parts)}."
