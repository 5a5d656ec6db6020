"""From an azure-ai-ml `PipelineJob` to our graph, with everything we cannot run refused by name.

Imports `graph`, `values` and `bindings`; of azure-ai-ml only the objects that it is handed. They
are walked, for `str(job)`, `job.dump` and `load_job` replace local paths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.bindings import Scope, bindings_in, bound_value, flat, resolve
from mlflow_perf.pipelines.graph import Graph, Literal, Parts, Port, Ref, Step, Value
from mlflow_perf.pipelines.values import check

__all__ = ["ports_of", "read_graph"]

_REMOTE_CODE = re.compile(r"^(azureml:|git\+|https?:|/subscriptions/)")
_DISTRIBUTIONS = ("mpi", "pytorch")
# Why a kind of node cannot run here, in the words that complete "which …".
_REFUSED = {
    "parallel_for": "is control flow",
    "sweep": "tries many settings",
    "parallel": "deals mini-batches to workers of its own",
    "spark": "needs a Spark cluster",
    "automl": "is run by the service",
    "import": "reads a cloud's database",
    "data_transfer": "copies between a cloud's stores",
    "if_else": "is control flow",
    "do_while": "is control flow",
    "fl_scatter_gather": "is federated",
}


def read_graph(job: Any, *, source: Path | None = None) -> Graph:
    """Return the flat graph of a pipeline job, every literal checked.

    Args:
        job: A `PipelineJob` as a `@dsl.pipeline` function returns it.
        source: File that defines it; relative input paths start at its folder.

    Raises:
        PipelineError: A node, an input or a literal cannot be run; the message names it.
    """
    settings = getattr(job, "settings", None)
    for name in ("on_init", "on_finalize"):
        if getattr(settings, name, None):
            raise PipelineError(f"The pipeline sets {name}, which only Azure ML runs.")
    base = source.parent if source else Path.cwd()
    scope = Scope("", base)
    scope.inputs = _pipeline_inputs(job, scope)
    steps = list(_steps(job.jobs, scope))
    if not steps:
        raise PipelineError("The pipeline has no steps.")
    return Graph(
        name=job.component.name or job.display_name or "pipeline",
        title=job.display_name or job.component.name or "pipeline",
        experiment=job.experiment_name or job.component.name or "pipeline",
        description=job.description or "",
        steps={step.name: step for step in steps},
        inputs={k: v for k, v in scope.inputs.items() if not isinstance(v, (Ref, Parts))},
        outputs=_outputs(job.outputs, scope),
        source=source,
        tags={str(k): str(v) for k, v in (job.tags or {}).items()},
    )


def _steps(jobs: Mapping[str, Any], scope: Scope) -> Iterator[Step]:
    """Yield the commands of a pipeline and of those nested in it."""
    pending = dict(jobs)
    while pending:
        # A job stated as YAML may stand before the one whose outputs it takes.
        ready = (n for n, node in pending.items() if not (_jobs_used(node) & set(pending)) - {n})
        name = next(ready, None)
        if name is None:
            raise PipelineError(f"The steps {', '.join(pending)} wait for each other.")
        yield from _node(name, pending.pop(name), scope)


def _node(name: str, node: Any, scope: Scope) -> Iterator[Step]:
    where = f"Step {scope.prefix + name!r}"
    kind = str(getattr(node, "type", type(node).__name__))
    if kind == "pipeline":
        yield from _nested(name, node, scope)
        return
    if kind != "command":
        why = next((w for k, w in _REFUSED.items() if kind.startswith(k)), "is no command")
        raise PipelineError(
            f"{where} is of type {kind}, which {why}: it runs with --on azureml only."
        )
    step = _command(name, node, scope, where)
    scope.outputs[name] = {output: Ref(step.name, output) for output in step.outputs}
    scope.owners[id(node)] = step.name
    yield step


def _nested(name: str, node: Any, scope: Scope) -> Iterator[Step]:
    where = f"Pipeline {scope.prefix + name!r}"
    component = _component(node, where)
    ports = ports_of(component.inputs)
    inner = Scope(f"{scope.prefix}{name}.", scope.base, owners=scope.owners)
    given = {key: bound_value(data, scope, where) for key, data in flat(node.inputs)}
    inner.inputs = {key: _bound(port, given.get(key), where) for key, port in ports.items()}
    yield from _steps(component.jobs, inner)
    scope.outputs[name] = _outputs(component.outputs, inner)


def _command(name: str, node: Any, scope: Scope, where: str) -> Step:
    component = _component(node, where)
    if component.name == "expression_component":
        raise PipelineError(
            f"{where} is an expression on an input ({component.display_name}), which only Azure ML "
            "evaluates: give the result as an input of the pipeline, or use --on azureml."
        )
    inputs = ports_of(component.inputs)
    given = {key: bound_value(data, scope, where) for key, data in flat(node.inputs)}
    instances, processes, distribution = _ranks(node, where)
    retry = getattr(node, "retry_settings", None) or {}
    limits = getattr(node, "limits", None)
    own_variables = getattr(node, "environment_variables", None) or {}
    variables = {**(component.environment_variables or {}), **own_variables}
    code, includes = _code(component, where)
    return Step(
        name=scope.prefix + name,
        component=component.name or name,
        command=str(component.command),
        code=code,
        includes=includes,
        inputs=inputs,
        outputs=ports_of(component.outputs),
        values={key: _bound(port, given.get(key), where) for key, port in inputs.items()},
        environment={key: str(value) for key, value in variables.items()},
        instances=instances,
        processes=processes,
        distribution=distribution,
        timeout_sec=_at_least(getattr(limits, "timeout", None), 0, f"{where}: timeout") or None,
        retries=int(_at_least(_field(retry, "max_retries"), 0, f"{where}: max_retries")),
    )


def _component(node: Any, where: str) -> Any:
    if isinstance(node.component, str):
        raise PipelineError(
            f"{where} uses the registered component {node.component}, which is not on this "
            "machine: load it from its component.yaml, or use --on azureml."
        )
    return node.component


def _ranks(node: Any, where: str) -> tuple[int, int, str | None]:
    """Return nodes, ranks per node and the kind of distribution."""
    instances = _at_least(_field(node.resources, "instance_count"), 1, f"{where}: instance_count")
    distribution = node.distribution
    kind = str(_field(distribution, "type") or "").lower() or None
    each = _field(distribution, "process_count_per_instance")
    processes = _at_least(each, 1, f"{where}: process_count_per_instance")
    if kind is not None and kind not in _DISTRIBUTIONS:
        raise PipelineError(
            f"{where} is distributed with {kind}, which runs with --on azureml only: "
            f"here {' and '.join(_DISTRIBUTIONS)} run."
        )
    if instances > 1 and kind is None:
        raise PipelineError(
            f"{where} asks for {instances:g} instances but names no distribution: "
            "set distribution: {type: mpi} in its component.yaml or on the step."
        )
    return int(instances), int(processes), kind


def _at_least(value: Any, least: int, what: str) -> float:
    """Return a setting as a number, `least` where it is not given; azure-ai-ml takes anything."""
    try:
        number = float(value or least)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number < math.inf:
        raise PipelineError(f"{what} is {value!r}, but must be a number of at least {least}.")
    return number


def _field(holder: Any, name: str) -> Any:
    """Return a value of a settings object that may be a dictionary, or not be there."""
    if isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None) if holder is not None else None


def _code(component: Any, where: str) -> tuple[Path | None, tuple[Path, ...]]:
    base = Path(component.base_path)
    includes = tuple(
        _include(entry, base, where)
        for entry in getattr(component, "additional_includes", None) or ()
    )
    code = component.code
    if code is None:
        return None, includes
    if _REMOTE_CODE.match(str(code)):
        raise PipelineError(f"{where} takes its code from {code}, which is not on this machine.")
    folder = (base / str(code)).resolve()
    if not folder.exists():
        raise PipelineError(f"{where}: its code {folder} does not exist.")
    return folder, includes


def _include(entry: Any, base: Path, where: str) -> Path:
    if not isinstance(entry, str):
        raise PipelineError(f"{where} includes an artifact feed, which only Azure ML can reach.")
    path = (base / entry).resolve()
    if not path.exists():
        raise PipelineError(f"{where}: additional_includes names {path}, which does not exist.")
    return path


def _pipeline_inputs(job: Any, scope: Scope) -> dict[str, Value]:
    """Return the values of the pipeline's own inputs, defaults put in."""
    given = {key: bound_value(data, scope, "The pipeline") for key, data in flat(job.inputs)}
    ports = ports_of(job.component.inputs)
    return {k: _bound(port, given.get(k), "The pipeline") for k, port in ports.items()}


def _bound(port: Port, value: Value, where: str) -> Value:
    """Return the value that goes into a port: the one given, the default, or None if it may."""
    label = f"{where}: input {port.name}"
    if value is None:
        value = port.default
    if value is None:
        if port.optional:
            return None
        hint = f": give --set {port.name}=…" if where == "The pipeline" else ""
        raise PipelineError(f"{label} is not given{hint}.")
    if isinstance(value, Path) and not port.is_path:
        raise PipelineError(f"{label} is the path {value}, but must be of type {port.type}.")
    if isinstance(value, Path):
        _exists(value, port, label)
    if isinstance(value, str) and port.is_path:
        raise PipelineError(f"{label} is {value!r}, but must be a {port.type}: Input(path=…).")
    if isinstance(value, (Path, Ref, Parts)):
        return value
    return check(value, port, where=label)


def _exists(path: Path, port: Port, label: str) -> None:
    if not path.exists():
        raise PipelineError(f"{label} is {path}, which does not exist.")
    if port.type == "uri_folder" and not path.is_dir():
        raise PipelineError(f"{label} is the file {path}, but must be a folder (uri_folder).")
    if port.type == "uri_file" and not path.is_file():
        raise PipelineError(f"{label} is the folder {path}, but must be a file (uri_file).")


def _jobs_used(node: Any) -> set[str]:
    """Return the names of the jobs of the same pipeline whose outputs a node takes."""
    bindings = [b for _, data in flat(getattr(node, "inputs", {})) for b in bindings_in(data)]
    return {b.split(".")[2] for b in bindings if b.startswith("parent.jobs.")}


def _outputs(outputs: Mapping[str, Any], scope: Scope) -> dict[str, Ref]:
    """Return where a pipeline's outputs come from."""
    found = {name: _output(name, output, scope) for name, output in outputs.items()}
    return {name: ref for name, ref in found.items() if ref is not None}


def _output(name: str, output: Any, scope: Scope) -> Ref | None:
    source: Any = getattr(output, "_binding_output", None)
    # What a nested pipeline passes on is bound to the node deep inside, by a name of that scope.
    owner = scope.owners.get(id(getattr(source, "_owner", None)))
    if owner is not None:
        return Ref(owner, str(source.port_name))
    bindings = bindings_in(source)
    value = resolve(bindings[0], scope, f"Output {name}") if bindings else None
    return value if isinstance(value, Ref) else None


def ports_of(declared: Mapping[str, Any], prefix: str = "") -> dict[str, Port]:
    """Return the inputs or outputs that a component declares, groups spread out.

    Args:
        declared: `component.inputs` or `component.outputs`.
        prefix: What stands before the names within a group.
    """
    found: dict[str, Port] = {}
    for name, item in declared.items():
        if getattr(item, "values", None) and not callable(item.values):
            found |= ports_of(item.values, f"{prefix}{name}.")
        else:
            found[prefix + name] = _port(prefix + name, item)
    return found


def _port(name: str, item: Any) -> Port:
    return Port(
        name=name,
        type=str(getattr(item, "type", "string")),
        optional=bool(getattr(item, "optional", False)),
        default=_literal(getattr(item, "default", None)),
        minimum=_number(getattr(item, "min", None)),
        maximum=_number(getattr(item, "max", None)),
        enum=tuple(getattr(item, "enum", None) or ()),
    )


def _literal(value: Any) -> Literal | None:
    return value if isinstance(value, (str, int, float, bool)) else None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
