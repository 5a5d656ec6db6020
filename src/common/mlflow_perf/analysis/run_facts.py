"""Facts of compared runs, side by side: parameters, verdicts, phases and functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlflow_perf.analysis.change_sentence import list_different
from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.analysis.phases import Phase, read_phases
from mlflow_perf.analysis.profile_changes import Seconds, line_up, read_own_seconds
from mlflow_perf.analysis.step_runs import StepRuns, list_steps
from mlflow_perf.tracking.perf_run import TAG, PerfRun

_MOST_FUNCTIONS = 12
_LEAST_SEC = 0.05


@dataclass(frozen=True)
class FactRow:
    """One fact of one step in every run.

    Attributes:
        step: Name of the step; empty for the workflow itself.
        name: Of a parameter, a phase or a function; empty for a verdict.
        values: Per run its text or its seconds; None where a run has none.
        details: Per run a few words about it, such as what held a phase back.
    """

    step: str
    name: str
    values: tuple[str | float | None, ...]
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """Facts of all compared runs.

    Attributes:
        parameters: Those that differ.
        verdicts: One row per step, with the advice as details.
        phases: Seconds of each phase of the longest node, with what held it back as details.
        functions: Seconds of the job's own functions, the largest difference first.
    """

    parameters: tuple[FactRow, ...] = ()
    verdicts: tuple[FactRow, ...] = ()
    phases: tuple[FactRow, ...] = ()
    functions: tuple[FactRow, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return asdict(self)


def collect_facts(sides: Sequence[StepRuns], *, baseline: int = 0) -> RunFacts:
    """Return the facts of runs or workflows, in the order of their steps.

    Args:
        sides: The runs.
        baseline: Index of the run that the others are compared with.
    """
    per_step: dict[str, list[PerfRun | None]] = {
        step: [side.steps.get(step) for side in sides] for step in list_steps(sides)
    }
    named = {step if len(per_step) > 1 else "": runs for step, runs in per_step.items()}
    every = list(named.items())
    workflow = [("", [side.run for side in sides])] if any(s.is_workflow for s in sides) else []

    def collect(
        source: Sequence[tuple[str, Sequence[PerfRun | None]]],
        read: Callable[[str, Sequence[PerfRun | None]], Iterator[FactRow]],
    ) -> tuple[FactRow, ...]:
        return tuple(row for step, runs in source for row in read(step, runs))

    # The workflow's inputs are parameters of its steps too, and are listed once.
    parameters: dict[tuple[str, tuple[str | float | None, ...]], FactRow] = {}
    for row in collect([*workflow, *every], _list_parameters):
        parameters.setdefault((row.name, row.values), row)
    return RunFacts(
        tuple(parameters.values()),
        collect(every, _list_verdicts),
        collect(every, _list_phases),
        collect(every, lambda step, runs: _list_functions(step, runs, baseline)),
    )


def _list_parameters(step: str, runs: Sequence[PerfRun | None]) -> Iterator[FactRow]:
    """Yield the parameters in which the runs differ; the inputs of a workflow have no step."""
    known = [run.params for run in runs if run is not None]
    different = dict.fromkeys(name for params in known for name in list_different(known[0], params))
    for name in different:
        yield FactRow(step, name, tuple(run.params.get(name) if run else None for run in runs))


def _list_verdicts(step: str, runs: Sequence[PerfRun | None]) -> Iterator[FactRow]:
    verdicts = [("", "") if run is None else read_verdict(run) for run in runs]
    if any(word for word, _ in verdicts):
        words = tuple(word or None for word, _ in verdicts)
        yield FactRow(step, "", words, tuple(advice for _, advice in verdicts))


def read_verdict(run: PerfRun) -> tuple[str, str]:
    """Return what held a run back, in a word, and the advice: as its tags or documents say."""
    word, advice = run.verdict, run.tags.get(f"{TAG}advice", "")
    if not word and run.document is not None and run.document.nodes:
        first = findings_of(run.document)[0]
        word, advice = first.word, first.sentence
    return word, advice


def _list_phases(step: str, runs: Sequence[PerfRun | None]) -> Iterator[FactRow]:
    phases: list[dict[str, list[Phase]]] = []
    for run in runs:
        nodes = [] if run is None or run.document is None else run.document.all_nodes()
        node = max(nodes, key=lambda node: node.duration_sec or 0.0, default=None)
        named: dict[str, list[Phase]] = {}
        for phase in read_phases(node) if node is not None else ():
            named.setdefault(phase.name, []).append(phase)
        phases.append(named)
    names = list(dict.fromkeys(name for named in phases for name in named))
    for name in names if len(names) > 1 else ():
        found = [named.get(name, []) for named in phases]
        seconds = tuple(sum(p.end_s - p.start_s for p in parts) or None for parts in found)
        kinds = (", ".join(dict.fromkeys(p.kind.replace("_", " ") for p in one)) for one in found)
        yield FactRow(step, name, seconds, tuple(kinds))


def _list_functions(step: str, runs: Sequence[PerfRun | None], baseline: int) -> Iterator[FactRow]:
    """Yield the seconds in each own function, libraries that it called included.

    Functions whose change is within its error, by the number of samples, are left out.
    """
    known = [
        None if run is None or run.document is None else read_own_seconds(run.document.all_nodes())
        for run in runs
    ]
    lined_up = line_up([one for one in known if one is not None])
    places = [i for i, one in enumerate(known) if one is not None]
    change = {}
    for key, (_, row) in lined_up.items():
        base = row[places.index(baseline)] if baseline in places else Seconds(0.0, 0.0)
        sure = [
            abs(one.seconds - base.seconds)
            for one in row
            if abs(one.seconds - base.seconds) >= math.hypot(one.error, base.error)
        ]
        change[key] = max(sure, default=0.0)
    ranked = sorted((k for k in change if change[k] >= _LEAST_SEC), key=lambda k: (-change[k], k))
    for key in ranked[:_MOST_FUNCTIONS]:
        in_main, row = lined_up[key]
        where = key[1] if in_main else f"{key[1]}, CPU time"
        by_place = {place: one.seconds for place, one in zip(places, row, strict=True)}
        seconds = tuple(by_place.get(i) for i in range(len(known)))
        yield FactRow(step, key[0], seconds, tuple(where for _ in known))
