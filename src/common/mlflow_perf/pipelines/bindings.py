"""Resolve the bindings of a node's inputs: literals, paths, and references inside texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import ARTIFACTS, Literal, Parts, Ref, Value
from mlflow_perf.pipelines.sources import Sources
from mlflow_perf.pipelines.values import format_literal, suggest_name

_BINDING = re.compile(r"\$\{\{\s*(parent\.[\w.\-]+)\s*\}\}")


@dataclass
class Scope:
    """The names inside one pipeline: the values of its inputs, and the outputs of its jobs."""

    prefix: str
    base: Path
    sources: Sources = field(default_factory=Sources)
    inputs: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, dict[str, Ref]] = field(default_factory=dict)
    bound: dict[str, Ref] = field(default_factory=dict)
    """The pipeline's own outputs that its jobs are bound to, by name, as YAML files do it."""
    output_types: dict[str, str] = field(default_factory=dict)
    """Declared types of the pipeline's own outputs."""
    owners: dict[int, str] = field(default_factory=dict)
    """Step by the identity of its node; shared by all scopes of one pipeline."""


def flatten_inputs(inputs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each input's name and bound data; members of a group are named `group.member`."""
    for name, item in inputs.items():
        if isinstance(item, Mapping):
            yield from flatten_inputs(item, f"{prefix}{name}.")
        else:
            # azure-ai-ml has no public name for it, and its text forms resolve the bindings.
            yield prefix + name, getattr(item, "_data", item)


def resolve_value(data: Any, scope: Scope, where: str) -> Value:
    """Return the value of bound data, with the pipeline's inputs and nested outputs inserted."""
    is_path = type(data).__name__ == "Input" and data.path is not None
    if type(data).__name__ == "Input" and not is_path:
        data = data.default
    if data is None or isinstance(data, (bool, int, float)):
        return data
    text = _read_text(data)
    if not _BINDING.search(text):
        return scope.sources.find(text, scope.base, where=where) if is_path else text
    items: list[Value] = []
    end = 0
    for match in _BINDING.finditer(text):
        items += [text[end : match.start()], resolve_binding(match[1], scope, where)]
        end = match.end()
    items = [item for item in [*items, text[end:]] if item != ""]
    if len(items) == 1 and not isinstance(items[0], str):
        return items[0]
    literals: list[Literal | Ref] = []
    for item in items:
        if isinstance(item, (Parts, Path)) or item is None:
            raise PipelineError(f"{where} inserts an input into a text, but it has no plain value.")
        literals.append(item)
    if any(isinstance(item, Ref) for item in literals):
        return Parts(tuple(literals))
    return "".join(format_literal(item) for item in literals if not isinstance(item, Ref))


def find_bindings(data: Any) -> list[str]:
    """Return the bindings in bound data, for example `parent.jobs.fit.outputs.model`."""
    return _BINDING.findall(_read_text(data))


def find_malformed(binding: str) -> str:
    """Return what is wrong with the form of a binding; empty if nothing is."""
    parts = binding.split(".")
    if parts[1] in ("inputs", "outputs") or (parts[1], *parts[3:4]) == ("jobs", "outputs"):
        return ""
    return f"uses {binding}: a binding is parent.inputs.NAME or parent.jobs.STEP.outputs.NAME"


def _read_text(data: Any) -> str:
    """Return bound data as text: the path of an `Input`, anything else as it is."""
    return str(data.path if type(data).__name__ == "Input" else data)


def resolve_binding(binding: str, scope: Scope, where: str) -> Value:
    """Return the value of `parent.inputs.<name>` or `parent.jobs.<job>.outputs.<name>`."""
    parts = binding.split(".")
    if fault := find_malformed(binding):
        raise PipelineError(f"{where} {fault}.")
    if parts[1] == "inputs":
        name = ".".join(parts[2:])
        if name not in scope.inputs:
            hint = suggest_name(name, scope.inputs)
            raise PipelineError(
                f"{where} uses the pipeline input {name}, which does not exist{hint}."
            )
        return scope.inputs[name]
    job, output = parts[2], parts[-1]
    if job in scope.outputs and output == ARTIFACTS and parts[3:] == ["outputs", output]:
        return scope.outputs[job].get(output) or Ref(scope.prefix + job, output)
    if job not in scope.outputs:
        hint = suggest_name(job, scope.outputs)
        raise PipelineError(f"{where} uses the step {job}, which does not exist{hint}.")
    found = scope.outputs.get(job, {}).get(output)
    if found is None:
        hint = suggest_name(output, scope.outputs.get(job, {}))
        raise PipelineError(f"{where} uses output {output} of {job}, which does not exist{hint}.")
    return found
