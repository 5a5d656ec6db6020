"""Chooses the memory and cores of each step, learned from its past or read from a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_perf.analysis.learned_memory import SeenRun, learn_memory
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.analysis.run_inputs import read_inputs
from mlflow_perf.errors import PipelineError, RunNotFoundError
from mlflow_perf.pipelines.graph import COMPONENT_TAG, Graph
from mlflow_perf.pipelines.values import suggest_name
from mlflow_perf.pipelines.yaml_file import read_yaml
from mlflow_perf.tracking.search import find_runs, quote_literal

LEARNED = "learned"
_NEWEST = 200
_SEEN_MAX = 400


@dataclass(frozen=True, slots=True)
class StepSize:
    """What a step asks for, per node.

    Attributes:
        memory_mb: Memory, in MB of 2^20 bytes; None where nothing is known.
        cpus: Cores; None where nothing is known.
        method: How this was found.
        seen: The runs that it was learned from, for the size of a retry.
        inputs: The step's numbers that may predict its memory.
        budget_mb: Memory that all steps on a machine may use together; None for all that is there.
    """

    memory_mb: int | None = None
    cpus: int | None = None
    method: str = ""
    seen: tuple[SeenRun, ...] = ()
    inputs: Mapping[str, float] | None = None
    budget_mb: float | None = None

    def grow(self, failed_mb: float) -> int:
        """Return the memory for the next attempt, in MB: always more than the failed one."""
        learned = learn_memory(self.seen, inputs=self.inputs, failed_mb=failed_mb)
        wanted = 2.0 * failed_mb if learned is None else learned.wanted_mb
        return max(math.ceil(wanted), math.floor(failed_mb) + 1)


def choose_sizes(
    given: str, graph: Graph, *, budget_mb: float | None, beside: Sequence[Graph] = ()
) -> dict[str, StepSize]:
    """Return the size of each step.

    Args:
        given: `learned`, or the path of a file of sizes.
        graph: The pipeline.
        budget_mb: Memory that all steps on a machine may use together; None for all that is there.
        beside: The other pipelines of its script, whose steps the file may name.

    Raises:
        PipelineError: The file cannot be read, or names what is no step.
    """
    found = learn_sizes(graph) if given == LEARNED else read_sizes(Path(given), graph, beside)
    return {
        name: StepSize(s.memory_mb, s.cpus, s.method, s.seen, s.inputs, budget_mb)
        for name, s in found.items()
    }


def learn_sizes(graph: Graph) -> dict[str, StepSize]:
    """Return each step's size from the past runs of its component, in the current MLflow store.

    A component without a past has a size of which nothing is known.
    """
    past = {}
    for component in {step.component for step in graph.steps.values()}:
        try:
            runs = find_runs(component, max_results=_NEWEST, documents=True)
            # A step that reports itself may do so under the name of its script.
            named = f"tags.`{COMPONENT_TAG}` = {quote_literal(component)}"
            runs += find_runs(filter_string=named, max_results=_NEWEST, documents=True)
        except RunNotFoundError:  # a store that was never used
            runs = []
        newest = sorted(runs, key=lambda run: run.started or 0.0, reverse=True)[:_NEWEST]
        past[component] = list({run.run_id or run.label: run for run in newest}.values())
    found = {}
    for name, step in graph.steps.items():
        runs = past[step.component]
        measured = {name for run in runs for name in read_inputs(run)}
        known = {
            name: float(value)
            for name, value in step.values.items()
            if name in measured
            and isinstance(value, (int, float))
            and not isinstance(value, bool)
            and math.isfinite(value)
        }
        try:
            size = right_size(runs, inputs=known, in_pipeline=True) if runs else None
        except RunNotFoundError:  # runs without figures of their nodes
            size = None
        if size is None:
            found[name] = StepSize(method="no past runs")
        else:
            method = size.method if size.memory_mb else "no past run tells its own memory"
            found[name] = StepSize(size.memory_mb, size.cpus, method, size.seen[-_SEEN_MAX:], known)
    return found


def read_sizes(path: Path, graph: Graph, beside: Sequence[Graph] = ()) -> dict[str, StepSize]:
    """Return the sizes in a YAML or JSON file: a step or component → `memory_mb` and `cpus`.

    What `advise --json` prints for a workflow or with `--all` is such a file. With `--all` it names
    every component of a store, so that most may be none of the pipeline.

    Args:
        path: The file.
        graph: The pipeline.
        beside: As in `choose_sizes`.

    Raises:
        PipelineError: The file cannot be read, or a name or a figure in it is wrong.
    """
    data, is_of_store = read_yaml(path), False
    if isinstance(data, Mapping):
        is_of_store = not data.get("steps") and bool(data.get("components"))
        data = data.get("steps") or data.get("components") or data
    if not isinstance(data, Mapping) or not all(isinstance(d, Mapping) for d in data.values()):
        raise PipelineError(f"{path} must name steps, each with memory_mb and cpus.")
    steps = [pair for one in (graph, *beside) for pair in one.steps.items()]
    names = dict.fromkeys(name for step, found in steps for name in (step, found.component))
    sizes = {}
    for key, figures in data.items():
        if str(key) not in names:
            if is_of_store and names.keys() & map(str, data):
                continue
            hint = suggest_name(str(key), list(names))
            raise PipelineError(f"{path} names {key!r}, which is no step{hint}.")
        where = f"{path}: {key}"
        memory, cpus = (_read_figure(figures, one, where) for one in ("memory_mb", "cpus"))
        if memory is None and cpus is None and figures and not {"memory_mb", "cpus"} & set(figures):
            named = ", ".join(map(str, figures))
            raise PipelineError(f"{where} has neither memory_mb nor cpus (there is: {named}).")
        sizes[str(key)] = StepSize(memory, cpus, f"from {path}")
    return {
        name: sizes.get(name) or sizes.get(step.component) or StepSize(method=f"not in {path}")
        for name, step in graph.steps.items()
    }


def _read_figure(figures: Mapping[str, Any], key: str, where: str) -> int | None:
    value = figures.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise PipelineError(f"{where}: {key} is {value!r}, but must be a number above zero.")
    return math.ceil(value)
