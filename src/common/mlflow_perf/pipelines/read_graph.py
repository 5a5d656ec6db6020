"""Read an azure-ai-ml `PipelineJob` into our graph; whatever cannot run here is refused by name.

The job's objects are read one by one, because `str(job)`, `job.dump` and `load_job` replace local
paths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.bindings import (
    Scope,
    find_bindings,
    flatten_inputs,
    resolve_binding,
    resolve_value,
)
from mlflow_perf.pipelines.graph import Graph, Parts, Port, Ref, Step, Value
from mlflow_perf.pipelines.values import check_literal

__all__ = ["read_graph", "read_ports"]

_REMOTE_CODE = re.compile(r"^(azureml:|git\+|https?:|/subscriptions/)")
_DISTRIBUTIONS = ("mpi", "pytorch")
# Why a kind of node cannot run here; the words complete "which …".
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
    """Return the flat graph of a pipeline job, with every literal checked.

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
    scope = Scope("", source.parent if source else Path.cwd())
    scope.inputs = _read_values(job, job.component, scope, "The pipeline")
    steps = {step.name: step for step in _read_steps(job.jobs, scope)}
    if not steps:
        raise PipelineError("The pipeline has no steps.")
    return Graph(
        name=job.component.name or job.display_name or "pipeline",
        title=job.display_name or job.component.name or "pipeline",
        experiment=job.experiment_name or job.component.name or "pipeline",
        description=job.description or "",
        steps=steps,
        inputs={k: v for k, v in scope.inputs.items() if not isinstance(v, (Ref, Parts))},
        outputs=_read_outputs(job.outputs, scope),
        source=source,
        tags={str(k): str(v) for k, v in (job.tags or {}).items()},
    )


def _read_steps(jobs: Mapping[str, Any], scope: Scope) -> Iterator[Step]:
    """Yield the commands of a pipeline and of its nested pipelines, each after those it needs."""
    pending = dict(jobs)
    while pending:
        # In a pipeline from YAML, a job can come before the job whose outputs it takes.
        for name, node in pending.items():
            data = (data for _, data in flatten_inputs(getattr(node, "inputs", {})))
            bindings = [binding for item in data for binding in find_bindings(item)]
            used = {b.split(".")[2] for b in bindings if b.startswith("parent.jobs.")}
            if not (used & pending.keys()) - {name}:
                break
        else:
            raise PipelineError(f"The steps {', '.join(pending)} wait for each other.")
        del pending[name]
        kind = str(getattr(node, "type", type(node).__name__))
        where = f"{'Pipeline' if kind == 'pipeline' else 'Step'} {scope.prefix + name!r}"
        if kind not in ("pipeline", "command"):
            why = next((w for k, w in _REFUSED.items() if kind.startswith(k)), "is no command")
            raise PipelineError(
                f"{where} is of type {kind}, which {why}: it runs with --on azureml only."
            )
        component = node.component
        if isinstance(component, str):
            raise PipelineError(
                f"{where} uses the registered component {component}, which is not on this "
                "machine: load it from its component.yaml, or use --on azureml."
            )
        if kind == "pipeline":
            inner = Scope(f"{scope.prefix}{name}.", scope.base, owners=scope.owners)
            inner.inputs = _read_values(node, component, scope, where)
            yield from _read_steps(component.jobs, inner)
            scope.outputs[name] = _read_outputs(component.outputs, inner)
        else:
            step = _read_step(name, node, scope, where)
            scope.outputs[name] = {output: Ref(step.name, output) for output in step.outputs}
            scope.owners[id(node)] = step.name
            yield step


def _read_step(name: str, node: Any, scope: Scope, where: str) -> Step:
    component = node.component
    if component.name == "expression_component":
        raise PipelineError(
            f"{where} is an expression on an input ({component.display_name}), which only Azure ML "
            "evaluates: give the result as an input of the pipeline, or use --on azureml."
        )
    instances = _read_number(node.resources, "instance_count", 1, where)
    processes = _read_number(node.distribution, "process_count_per_instance", 1, where)
    distribution = str(_read_field(node.distribution, "type") or "").lower() or None
    if distribution is not None and distribution not in _DISTRIBUTIONS:
        raise PipelineError(
            f"{where} is distributed with {distribution}, which runs with --on azureml only: "
            f"here {' and '.join(_DISTRIBUTIONS)} run."
        )
    if instances > 1 and distribution is None:
        raise PipelineError(
            f"{where} asks for {instances:g} instances but names no distribution: "
            "set distribution: {type: mpi} in its component.yaml or on the step."
        )
    own_variables = getattr(node, "environment_variables", None) or {}
    variables = {**(component.environment_variables or {}), **own_variables}
    code, includes = _find_code(component, where)
    return Step(
        name=scope.prefix + name,
        component=component.name or name,
        command=str(component.command),
        code=code,
        includes=includes,
        inputs=read_ports(component.inputs),
        outputs=read_ports(component.outputs),
        values=_read_values(node, component, scope, where),
        environment={key: str(value) for key, value in variables.items()},
        instances=int(instances),
        processes=int(processes),
        distribution=distribution,
        timeout_sec=_read_number(getattr(node, "limits", None), "timeout", 0, where) or None,
        retries=int(_read_number(getattr(node, "retry_settings", None), "max_retries", 0, where)),
    )


def _read_number(holder: Any, name: str, least: int, where: str) -> float:
    """Return a setting as a number, `least` if it is not set; azure-ai-ml accepts any value."""
    value = _read_field(holder, name)
    try:
        number = float(value or least)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number < math.inf:
        raise PipelineError(
            f"{where}: {name} is {value!r}, but must be a number of at least {least}."
        )
    return number


def _read_field(holder: Any, name: str) -> Any:
    """Return a value of a settings object, which can also be a dictionary or None."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _find_code(component: Any, where: str) -> tuple[Path | None, tuple[Path, ...]]:
    """Return the folder or file of a component's code, and what it includes."""
    base = Path(component.base_path)
    includes = []
    for entry in getattr(component, "additional_includes", None) or ():
        if not isinstance(entry, str):
            raise PipelineError(
                f"{where} includes an artifact feed, which only Azure ML can reach."
            )
        path = (base / entry).resolve()
        if not path.exists():
            raise PipelineError(f"{where}: additional_includes names {path}, which does not exist.")
        includes.append(path)
    code = component.code
    if code is None:
        return None, tuple(includes)
    if _REMOTE_CODE.match(str(code)):
        raise PipelineError(f"{where} takes its code from {code}, which is not on this machine.")
    folder = (base / str(code)).resolve()
    if not folder.exists():
        raise PipelineError(f"{where}: its code {folder} does not exist.")
    return folder, tuple(includes)


def _read_values(node: Any, component: Any, scope: Scope, where: str) -> dict[str, Value]:
    """Return the value of each input of a node's component: the given one, else the default."""
    given = {key: resolve_value(data, scope, where) for key, data in flatten_inputs(node.inputs)}
    values: dict[str, Value] = {}
    for name, port in read_ports(component.inputs).items():
        label = f"{where}: input {name}"
        value = given.get(name)
        value = port.default if value is None else value
        if value is None and not port.optional:
            hint = f": give --set {name}=…" if where == "The pipeline" else ""
            raise PipelineError(f"{label} is not given{hint}.")
        if isinstance(value, Path):
            if not port.is_path:
                raise PipelineError(
                    f"{label} is the path {value}, but must be of type {port.type}."
                )
            if not value.exists():
                raise PipelineError(f"{label} is {value}, which does not exist.")
            if port.type == "uri_folder" and not value.is_dir():
                raise PipelineError(
                    f"{label} is the file {value}, but must be a folder (uri_folder)."
                )
            if port.type == "uri_file" and not value.is_file():
                raise PipelineError(
                    f"{label} is the folder {value}, but must be a file (uri_file)."
                )
        elif isinstance(value, str) and port.is_path:
            raise PipelineError(f"{label} is {value!r}, but must be a {port.type}: Input(path=…).")
        elif value is not None and not isinstance(value, (Ref, Parts)):
            value = check_literal(value, port, where=label)
        values[name] = value
    return values


def _read_outputs(outputs: Mapping[str, Any], scope: Scope) -> dict[str, Ref]:
    """Return the sources of a pipeline's outputs."""
    found: dict[str, Ref] = {}
    for name, output in outputs.items():
        source: Any = getattr(output, "_binding_output", None)
        # An output of a nested pipeline is bound to the inner node, by a name of the inner scope.
        owner = scope.owners.get(id(getattr(source, "_owner", None)))
        if owner is not None:
            found[name] = Ref(owner, str(source.port_name))
        elif bindings := find_bindings(source):
            value = resolve_binding(bindings[0], scope, f"Output {name}")
            if isinstance(value, Ref):
                found[name] = value
    return found


def read_ports(declared: Mapping[str, Any], prefix: str = "") -> dict[str, Port]:
    """Return the inputs or outputs that a component declares, with groups flattened.

    Args:
        declared: `component.inputs` or `component.outputs`.
        prefix: Prefix of the names within a group.
    """
    found: dict[str, Port] = {}
    for key, item in declared.items():
        name = prefix + key
        if getattr(item, "values", None) and not callable(item.values):
            found |= read_ports(item.values, f"{name}.")
            continue
        default = getattr(item, "default", None)
        low, high = getattr(item, "min", None), getattr(item, "max", None)
        found[name] = Port(
            name=name,
            type=str(getattr(item, "type", "string")),
            optional=bool(getattr(item, "optional", False)),
            default=default if isinstance(default, (str, int, float, bool)) else None,
            minimum=None if low is None else float(low),
            maximum=None if high is None else float(high),
            enum=tuple(getattr(item, "enum", None) or ()),
        )
    return found
