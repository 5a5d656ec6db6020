"""What is compared: runs and whole workflows, as named steps on their hardware. Imports runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.load import RunRef
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_children, get_runs

__all__ = [
    "StepRuns",
    "compare_hardware",
    "hardware",
    "is_alike",
    "load_step_runs",
    "name_steps",
    "several",
]

_LOOK_FOR_CHILDREN_MAX = 20
"""Of more runs than this, only those without figures of their own are asked for children: each
question is a request."""

# How the facts of a node that are about its hardware start; the others say where it stood.
_HARDWARE_FACTS = ("cpu_", "mem_total", "gpu_name", "gpu_count", "arch", "machine_type")
_LIMITS = ("cpu_limit_cores", "mem_limit_mb")


@dataclass(frozen=True)
class StepRuns:
    """One thing that is compared: a run, or a workflow with its steps.

    Attributes:
        label: Name for people.
        run: The run itself: of a workflow, the parent.
        steps: Name of the step → its run; a run of its own is one step.
    """

    label: str
    run: PerfRun
    steps: Mapping[str, PerfRun]

    @property
    def is_workflow(self) -> bool:
        """Whether the steps are children of the run."""
        return len(self.steps) > 1 or self.run not in self.steps.values()


def several(given: RunRef | PerfRun | Sequence[RunRef | PerfRun]) -> Sequence[RunRef | PerfRun]:
    """Return the sources as a list, also where it is one: a text is no list of letters."""
    return [given] if isinstance(given, (str, os.PathLike, PerfRun)) else given


def load_step_runs(
    sources: Sequence[RunRef | PerfRun], *, documents: bool | None = None
) -> list[StepRuns]:
    """Return what the sources name, in their order.

    Raises:
        RunNotFoundError: When one does not exist, or neither it nor its children hold figures.
        DocumentError: When a file is not a document that this version reads.
    """
    named = [source for source in sources if not isinstance(source, PerfRun)]
    loaded = iter(get_runs(named, documents=documents))
    runs = [s if isinstance(s, PerfRun) else next(loaded) for s in sources]
    few = len(runs) <= _LOOK_FOR_CHILDREN_MAX
    return [_subject(run, documents, look=few or not run.has_figures) for run in runs]


def _subject(run: PerfRun, documents: bool | None, *, look: bool) -> StepRuns:
    found = find_children(run, documents=documents) if look else []
    steps = [child for child in (run, *found) if child.has_figures]
    if not steps:
        raise RunNotFoundError(_no_figures(run))
    return StepRuns(run.label, run, name_steps(steps))


def _no_figures(run: PerfRun) -> str:
    if run.status == "RUNNING":
        return f"The run {run.label} is still going: it holds no performance data yet."
    return f"The run {run.label} holds no performance data, and no run that is its child does."


def name_steps(steps: Iterable[PerfRun]) -> dict[str, PerfRun]:
    """Return steps by name; a name that comes again is numbered in the order of the starts."""
    named: dict[str, PerfRun] = {}
    for step in steps:
        name, count = step.step, 2
        while name in named:
            name, count = f"{step.step} ({count})", count + 1
        named[name] = step
    return named


def hardware(run: PerfRun) -> dict[str, Any]:
    """Return what is known of the hardware of a run's first node and what it was given of it."""
    nodes = run.nodes
    if not nodes:
        return {}
    index = min(nodes)
    facts = run.document.nodes[index].node if run.document is not None else {}
    known = {k: v for k, v in facts.items() if k.startswith(_HARDWARE_FACTS)}
    limits = {k: nodes[index][k] for k in _LIMITS if k in nodes[index]}
    return {**known, **limits, "nodes": run.node_count}


def is_alike(key: str, one: Any, other: Any) -> bool:
    """Return whether a fact of the hardware of two runs is that of machines of one kind."""
    if not (isinstance(one, (int, float)) and isinstance(other, (int, float))):
        return bool(one == other)
    # The memory of two machines of one kind differs by what the kernel keeps.
    return math.isclose(one, other, rel_tol=0.01 if key.startswith("mem") else 1e-3)


def compare_hardware(subjects: Sequence[StepRuns]) -> list[str]:
    """Return one sentence per step that did not have the same hardware everywhere."""
    notes = []
    for step in dict.fromkeys(name for subject in subjects for name in subject.steps):
        found = [hardware(s.steps[step]) for s in subjects if step in s.steps]
        keys = sorted({key for facts in found for key in facts})
        different = [text for key in keys if (text := _difference(key, found))]
        if different:
            notes.append(f"Different hardware for {step}: {'; '.join(different)}.")
    return notes


def _difference(key: str, found: Sequence[Mapping[str, Any]]) -> str:
    """Return how a fact differs, `""` where it does not or is not known everywhere."""
    values = [facts[key] for facts in found if key in facts]
    if len(values) < len(found) or all(is_alike(key, values[0], value) for value in values):
        return ""
    shown = list(dict.fromkeys(f"{v:g}" if isinstance(v, float) else str(v) for v in values))
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return f"{key} {' / '.join(shown[:5])}{more}"
