"""The sides of a comparison: runs and whole workflows, as named steps on their hardware."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from mlflow_perf.core.format import format_count, join_some
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.attempts import leave_out_retried
from mlflow_perf.tracking.load import RunRef
from mlflow_perf.tracking.notices import tell
from mlflow_perf.tracking.perf_run import TAG, PerfRun
from mlflow_perf.tracking.search import Visits, find_children, get_runs

_LOOK_FOR_CHILDREN_MAX = 20
"""With more runs than this, only runs without figures are searched for children: each search is a
request."""

# Prefixes of the node's facts that describe its hardware; the other facts say where it was.
_HARDWARE_FACTS = ("cpu_", "mem_total", "gpu_name", "gpu_count", "arch", "machine_type")
_LIMITS = ("cpu_limit_cores", "mem_limit_mb")


@dataclass(frozen=True)
class StepRuns:
    """One side of a comparison: a run, or a workflow with its steps.

    Attributes:
        label: Name for people.
        run: The run itself; for a workflow, the parent.
        steps: Name of the step → its run; a single run is one step.
    """

    label: str
    run: PerfRun
    steps: Mapping[str, PerfRun]

    @property
    def is_workflow(self) -> bool:
        """Whether the steps are children of the run."""
        return len(self.steps) > 1 or self.run not in self.steps.values()

    def name_step(self, step: str) -> str:
        """Return the name of a step for people, with the workflow's if it is part of one."""
        return f"{step} of {self.label}" if self.is_workflow else self.label

    def group_tasks(self) -> dict[str, list[PerfRun]]:
        """Return the runs of all tasks of each step by the name that these share."""
        groups: dict[str, list[PerfRun]] = {}
        for run in self.steps.values():
            groups.setdefault(run.step, []).append(run)
        return groups

    def without_retried(self) -> StepRuns:
        """Return a workflow that ended well without the attempts that were tried again."""
        retried = self.list_retried()
        kept = [run for name, run in self.steps.items() if name not in retried]
        return replace(self, steps=name_steps(kept)) if retried else self

    def list_retried(self) -> set[str]:
        """Return the steps of a workflow that ended well which were tried again."""
        if not self.is_workflow or self.run.status != "FINISHED":
            return set()
        # By object: the components of one run are steps of one id.
        kept = {id(run) for run in leave_out_retried(list(self.steps.values()), _identify_task)}
        return {name for name, run in self.steps.items() if id(run) not in kept}


Ref: TypeAlias = RunRef | PerfRun | StepRuns
"""A run by its name, one that was read already, or one whose steps were read too."""


def as_list(runs: Ref | Sequence[Ref]) -> Sequence[Ref]:
    """Return one run or several as a sequence; a text is one run, not a sequence of letters."""
    return [runs] if isinstance(runs, (str, os.PathLike, PerfRun, StepRuns)) else runs


def load_step_runs(
    refs: Sequence[Ref],
    *,
    documents: bool | None = None,
    visits: Visits | None = None,
    with_parent: bool = False,
) -> list[StepRuns]:
    """Return the named runs and workflows, in their order.

    Args:
        refs: Run ids, paths, folders, runs that were read already, and such with their steps.
        documents: As in `tracking.search.get_runs`.
        visits: As in `tracking.search.find_children`, for the steps of workflows.
        with_parent: As in `collect_steps`.

    Raises:
        RunNotFoundError: When one does not exist, or neither it nor its children hold figures.
        DocumentError: When a file is not a document that this version reads.
    """
    named = [ref for ref in refs if not isinstance(ref, (PerfRun, StepRuns))]
    loaded = iter(get_runs(named, documents=documents))
    found = []
    for ref in refs:
        if isinstance(ref, StepRuns):
            found.append(ref)
            continue
        run = ref if isinstance(ref, PerfRun) else next(loaded)
        children: Sequence[PerfRun] = ()
        if len(refs) <= _LOOK_FOR_CHILDREN_MAX or not run.has_figures:
            children = find_steps(run, documents=documents, visits=visits)
        found.append(collect_steps(run, children, with_parent=with_parent))
    return found


def find_steps(
    run: PerfRun, *, documents: bool | None = None, visits: Visits | None = None
) -> list[PerfRun]:
    """Return the children of a run, and tell the user where some of its steps cannot be read.

    The arguments are those of `tracking.search.find_children`.
    """
    children = find_children(run, documents=documents, visits=visits)
    for sentence in explain_unread(run, len(children)):
        tell.get()(f"{run.label}: {sentence}")
    return children


def _identify_task(run: PerfRun) -> tuple[str | None, ...]:
    """Return what all attempts of a task share; several tasks may be one step of the workflow."""
    return run.name, run.component, run.tags.get(f"{TAG}cluster")


def explain_unread(parent: PerfRun, read: int) -> list[str]:
    """Return a sentence on the steps that are in the parent's report and were not read."""
    unread = parent.count_unread_steps(read)
    if not unread:
        return []
    where = "deleted, or in an experiment that you may not read"
    rest = "The figures are those of the other steps."
    return [f"{unread} of {read + unread} steps cannot be read: {where}. {rest}"]


def collect_steps(
    run: PerfRun,
    children: Iterable[PerfRun],
    *,
    with_parent: bool = False,
    with_silent: bool = False,
) -> StepRuns:
    """Return a run as its components; a workflow as those of its children.

    The steps have the names that `show` gives them.

    Args:
        run: The run.
        children: Its children.
        with_parent: Whether a workflow's parent that is measured itself comes first, as a step.
        with_silent: Whether the children without figures are steps, too.

    Raises:
        RunNotFoundError: When there are no such steps.
    """
    parts = [part for child in children for part in split_step(child)]
    is_workflow = any(part.has_figures for part in parts)
    own = run.split() if run.has_figures and (with_parent or not is_workflow) else []
    named = name_steps([*own, *(parts if is_workflow else ())])
    steps = {name: step for name, step in named.items() if with_silent or step.has_figures}
    if not steps and run.status == "RUNNING":
        raise RunNotFoundError(run.explain_missing_end())
    if not steps:
        raise RunNotFoundError(
            f"The run {run.label} holds no performance data, nor does any child of it."
        )
    return StepRuns(run.label, run, steps)


def split_step(run: PerfRun) -> list[PerfRun]:
    """Return a child of a workflow by component.

    The first one of a pipeline's step is the step as a whole, as its runner knows it: its script
    may work on after the first of its blocks, or survive that one's exception.
    """
    first, *others = run.split()
    return [run if f"{TAG}step" in run.tags else first, *others]


def name_steps(runs: Iterable[PerfRun]) -> dict[str, PerfRun]:
    """Return runs by the names of their steps; a repeated name is numbered."""
    named: dict[str, PerfRun] = {}
    counts: Counter[str] = Counter()
    for run in runs:
        name = step = run.step
        counts[step] += 1
        while name in named:
            name = f"{step} ({max(2, counts[step])})"
            counts[step] += name in named
        named[name] = run
    return named


def list_steps(sides: Iterable[StepRuns]) -> list[str]:
    """Return the names of all steps, each once, in the order in which they come."""
    return list(dict.fromkeys(name for side in sides for name in side.steps))


def describe_hardware(run: PerfRun) -> dict[str, Any]:
    """Return the known hardware of a run's first node, and the job's limits on it."""
    nodes = run.nodes
    if not nodes:
        return {}
    index = min(nodes)
    facts = run.document.nodes[index].node if run.document is not None else {}
    known = {k: v for k, v in facts.items() if k.startswith(_HARDWARE_FACTS)}
    limits = {k: nodes[index][k] for k in _LIMITS if k in nodes[index]}
    return {**known, **limits, "nodes": run.node_count}


def _is_alike(key: str, one: Any, other: Any) -> bool:
    """Return whether a hardware fact of two runs fits machines of the same kind."""
    if not (isinstance(one, (int, float)) and isinstance(other, (int, float))):
        return bool(one == other)
    # On equal machines the memory differs by what the kernel keeps for itself.
    return math.isclose(one, other, rel_tol=0.01 if key.startswith("mem") else 1e-3)


def find_same_hardware(candidates: Sequence[PerfRun], like: PerfRun) -> list[PerfRun]:
    """Return the runs on the same hardware as another run, in their order.

    Args:
        candidates: Runs of history.
        like: The run whose hardware is wanted.

    Raises:
        RunNotFoundError: When no candidate ran on that hardware.
    """
    wanted = describe_hardware(like)
    found = []
    for run in candidates:
        facts = describe_hardware(run)
        if all(_is_alike(key, facts[key], wanted[key]) for key in facts.keys() & wanted.keys()):
            found.append(run)
    if not found:
        raise RunNotFoundError(
            f"None of {format_count(len(candidates), 'run')} found in history had the hardware of "
            f"{like.label}."
        )
    return found


def compare_hardware(sides: Sequence[StepRuns]) -> list[str]:
    """Return one sentence for each step whose hardware was not the same everywhere."""
    notes = []
    for step in list_steps(sides):
        found = [describe_hardware(side.steps[step]) for side in sides if step in side.steps]
        different = []
        for key in sorted(set.intersection(*map(set, found))):
            values = [facts[key] for facts in found]
            if not all(_is_alike(key, values[0], value) for value in values):
                texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
                different.append(f"{key} {join_some(dict.fromkeys(texts), separator=' / ')}")
        if different:
            notes.append(f"Different hardware for {step}: {'; '.join(different)}.")
    return notes
