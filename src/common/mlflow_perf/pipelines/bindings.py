"""What an input of a node is bound to: literals, paths, and references inside texts.

Imports `graph`, `paths` and `values`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import Literal, Parts, Ref, Value
from mlflow_perf.pipelines.paths import local_path
from mlflow_perf.pipelines.values import did_you_mean, text_of

__all__ = ["Scope", "bindings_in", "bound_value", "flat", "resolve"]

_BINDING = re.compile(r"\$\{\{\s*(parent\.[\w.\-]+)\s*\}\}")


@dataclass
class Scope:
    """What names mean inside one pipeline: its inputs' values, and its jobs' outputs."""

    prefix: str
    base: Path
    inputs: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, dict[str, Ref]] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    """Step by the identity of its node; shared by all scopes of one pipeline."""


def flat(inputs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the inputs with their names, those within a group as `group.member`."""
    for name, item in inputs.items():
        if isinstance(item, Mapping):
            yield from flat(item, f"{prefix}{name}.")
        else:
            yield prefix + name, _data(item)


def _data(item: Any) -> Any:
    """Return what an input is bound to.

    azure-ai-ml has no public name for it: its text forms resolve or replace what we need to see.
    """
    return getattr(item, "_data", item)


def bound_value(data: Any, scope: Scope, where: str) -> Value:
    """Return the bound value, with the pipeline's inputs and nested outputs put in."""
    if data is None or isinstance(data, (bool, int, float)):
        return data
    path = _path(data)
    text = path if path is not None else str(data)
    if not _BINDING.search(text):
        return local_path(text, scope.base, where=where) if path is not None else text
    items = [part for part in _split(text, scope, where) if part != ""]
    if len(items) == 1 and not isinstance(items[0], str):
        return items[0]
    return _joined(items, where)


def bindings_in(data: Any) -> list[str]:
    """Return the bindings that a bound value names: `parent.jobs.fit.outputs.model`, say."""
    path = _path(data)
    return _BINDING.findall(path if path is not None else str(data))


def _path(data: Any) -> str | None:
    """Return the path of an `Input` object; None for anything else."""
    return str(data.path) if type(data).__name__ == "Input" else None


def _split(text: str, scope: Scope, where: str) -> Iterator[Value]:
    """Yield the plain parts of a text and the values of the bindings in it."""
    end = 0
    for match in _BINDING.finditer(text):
        yield text[end : match.start()]
        yield resolve(match[1], scope, where)
        end = match.end()
    yield text[end:]


def _joined(items: list[Value], where: str) -> Value:
    literals: list[Literal | Ref] = []
    for item in items:
        if isinstance(item, (Parts, Path)) or item is None:
            raise PipelineError(f"{where} puts an input into a text that holds no plain value.")
        literals.append(item)
    if any(isinstance(item, Ref) for item in literals):
        return Parts(tuple(literals))
    return "".join(text_of(item) for item in literals if not isinstance(item, Ref))


def resolve(binding: str, scope: Scope, where: str) -> Value:
    """Return what `parent.inputs.<name>` or `parent.jobs.<job>.outputs.<name>` means here."""
    parts = binding.split(".")
    if parts[1] == "inputs":
        name = ".".join(parts[2:])
        if name not in scope.inputs:
            raise PipelineError(f"{where} uses the pipeline input {name}, which does not exist.")
        return scope.inputs[name]
    job, output = parts[2], parts[-1]
    found = scope.outputs.get(job, {}).get(output)
    if found is None:
        hint = did_you_mean(output, scope.outputs.get(job, {}))
        raise PipelineError(f"{where} uses output {output} of {job}, which does not exist{hint}.")
    return found
