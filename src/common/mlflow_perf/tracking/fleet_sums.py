"""The figures that are summed up over the runs of a store, and the groups of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

FIGURES = ("cpu_hours", "unused_cpu_hours", "gpu_hours", "unused_gpu_hours", "cost", "unused_cost")
"""What is summed up: the metric `run_<name>` of each run, `node_<name>` of a run without it."""

GROUPS = ("experiment", "user", "component", "workflow", "week")
"""What runs are summed up by."""

WEEK_MS = 7 * 86_400_000
MONDAY_MS = 4 * 86_400_000
"""The first Monday of Unix time: 5 January 1970."""

USER_TAG = "mlflow.user"
"""MLflow's tag with the name of the user."""


@dataclass(frozen=True)
class Choice:
    """Which runs are summed up, and how they are grouped.

    Attributes:
        by: One of `GROUPS`.
        experiments: Ids of the experiments that may be read.
        since_ms: Only runs that started then or later, Unix time in milliseconds.
        until_ms: Only runs that started before.
        edges_ms: Moments in their order that divide the groups; with any, weeks divide them too.
        nested: Whether the figures of some runs may be contained in those of others.
    """

    by: str
    experiments: Sequence[str]
    since_ms: int | None = None
    until_ms: int | None = None
    edges_ms: tuple[int, ...] = ()
    nested: bool = False


@dataclass(frozen=True)
class Sums:
    """The sums of one group.

    Attributes:
        group: The id of an experiment, a user, a component, the name of the parent run, or the
            number of the week since the first Monday of 1970; None for runs without one.
        runs: How many runs, and workflows that failed though no step did.
        failed: How many of them failed or were killed.
        figures: Each of `FIGURES`; None where no run has it.
        week: The number of the week; only if moments divide the groups.
        part: How many of the moments came before the runs started.
        above: The part of the runs whose figures contain these; None for figures that count.
    """

    group: Any
    runs: int
    failed: int
    figures: Mapping[str, float | None]
    week: int = 0
    part: int = 0
    above: int | None = None

    def add(self, other: Sums) -> Sums:
        """Return the sums of both, as one group."""
        figures = {}
        for name in FIGURES:
            known = [s.figures[name] or 0.0 for s in (self, other) if s.figures[name] is not None]
            figures[name] = sum(known) if known else None
        runs, failed = self.runs + other.runs, self.failed + other.failed
        return replace(self, runs=runs, failed=failed, figures=figures)


def add_up(sums: Iterable[Sums]) -> list[Sums]:
    """Return the sums with those of one group, week and parts added up."""
    found: dict[Any, Sums] = {}
    for one in sums:
        key = (one.group, one.week, one.part, one.above)
        found[key] = found[key].add(one) if key in found else one
    return list(found.values())


def choose_parts(sums: Iterable[Sums], first: int, last: int) -> Iterator[Sums]:
    """Yield the sums of some parts; figures count once that runs above them in the parts contain.

    Args:
        sums: The sums of all parts.
        first: The first part.
        last: The last part.
    """
    for one in sums:
        if first <= one.part <= last:
            is_inside = one.above is not None and first <= one.above <= last
            figures = dict.fromkeys(FIGURES) if is_inside else one.figures
            yield replace(one, figures=figures, above=None)
