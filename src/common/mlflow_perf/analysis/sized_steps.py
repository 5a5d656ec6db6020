"""The advice for each step of a workflow, or for each component."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mlflow_perf.analysis.rightsize import RightSize
from mlflow_perf.core.format import format_count
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.notices import tell
from mlflow_perf.tracking.perf_run import PerfRun

SizeRuns = Callable[[Sequence[PerfRun]], RightSize]
"""Returns the advice for a step or component from its runs."""


def size_each(
    groups: Mapping[str, Sequence[PerfRun]], size: SizeRuns, silent: Sequence[PerfRun] = ()
) -> dict[str, RightSize]:
    """Return the advice for each group of runs; the user is told of those without figures.

    Args:
        groups: Name of a step or component → its runs.
        size: Returns the advice for one of them.
        silent: Runs that were killed before they had figures: the evidence counts them.

    Raises:
        RunNotFoundError: When none of the runs holds figures of its nodes.
        SettingError: As `size` does.
    """
    sizes = {}
    for name, runs in groups.items():
        try:
            found = size(runs)
        except RunNotFoundError as error:
            if len(groups) == 1:
                raise
            tell.get()(f"{name} is left out: {error}")
        else:
            evidence = [*found.evidence]
            if count := sum(run.component == name for run in silent):
                was, it = ("was", "it") if count == 1 else ("were", "they")
                left_out = f"{format_count(count, 'run')} of {name} {was} left out"
                evidence.append(f"{left_out}: {it} {was} killed before {it} had figures.")
            sizes[name] = replace(found, evidence=tuple(evidence))
    if not sizes:
        raise RunNotFoundError("No run holds figures of its nodes: there is nothing to advise.")
    return sizes
