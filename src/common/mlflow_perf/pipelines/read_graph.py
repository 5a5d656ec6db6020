"""Read an azure-ai-ml `PipelineJob` into our graph; whatever cannot run here is refused by name.

The job's objects are read one by one, because `str(job)`, `job.dump` and `load_job` replace local
paths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.azure import load_definition
from mlflow_perf.pipelines.bindings import (
    Scope,
    find_bindings,
    flatten_inputs,
    resolve_binding,
    resolve_value,
)
from mlflow_perf.pipelines.definitions import ANONYMOUS, find_definition, name_component
from mlflow_perf.pipelines.graph import Graph, Parts, Port, Ref, Step, Value
from mlflow_perf.pipelines.read_environment import read_environment
from mlflow_perf.pipelines.refused_kinds import explain_refusal
from mlflow_perf.pipelines.sources import CodeSource, Sources, find_cache_folder
from mlflow_perf.pipelines.values import check_literal

_REMOTE_CODE = re.compile(r"^(azureml:|git\+|https?:|/subscriptions/)")
_REGISTRY = re.compile(r"^azureml://registries/([^/]+)/components/([^/]+)")
_DISTRIBUTIONS = ("mpi", "pytorch", "tensorflow")


def read_graph(job: Any, *, source: Path | None = None, sources: Sources | None = None) -> Graph:
    """Return the flat graph of a pipeline job or a command job, with every literal checked.

    Args:
        job: A `PipelineJob` as a `@dsl.pipeline` function or `load_job` returns it, or a command.
        source: File that defines it; relative input paths start at its folder.
        sources: Where inputs that are not local come from.

    Raises:
        PipelineError: A node, an input or a literal cannot be run; the message names it and the
            file.
    """
    try:
        return _read_graph(job, source, sources or Sources())
    except PipelineError as error:
        if source is None or str(source) in str(error):
            raise
        raise PipelineError(f"{source}: {error}") from error


def _read_graph(job: Any, source: Path | None, sources: Sources) -> Graph:
    base = source.parent if source else Path.cwd()
    scope = Scope("", base, sources)
    file = source.stem if source else "pipeline"
    name = re.sub(r"[^\w\-]+", "_", job.display_name or job.name or file)
    if job.type != "pipeline":
        _refuse_kinds({name: job}, scope)
        step = _read_step(name, job, scope, f"Step {name!r}")
        return _make_graph(job, name, job.display_name or name, {name: step}, source)
    for setting in ("on_init", "on_finalize"):
        if getattr(getattr(job, "settings", None), setting, None):
            raise PipelineError(f"The pipeline sets {setting}, which only Azure ML runs.")
    _refuse_kinds(job.jobs, scope)
    component = job.component
    scope.inputs = _read_values(job, component, scope, "The pipeline")
    scope.output_types = _list_output_types(job.outputs)
    steps = {step.name: step for step in _read_steps(job.jobs, scope)}
    if not steps:
        raise PipelineError("The pipeline has no steps.")
    named = None if component.name == ANONYMOUS else component.name
    title = job.display_name or named or name
    graph = _make_graph(job, named or name, title, steps, source)
    inputs = {k: v for k, v in scope.inputs.items() if not isinstance(v, (Ref, Parts))}
    return replace(graph, inputs=inputs, outputs=_read_outputs(job.outputs, scope))


def _make_graph(
    job: Any, name: str, title: str, steps: dict[str, Step], source: Path | None
) -> Graph:
    return Graph(
        name=name,
        title=title,
        experiment=job.experiment_name or "",
        description=job.description or "",
        steps=steps,
        source=source,
        tags={str(k): str(v) for k, v in (job.tags or {}).items()},
    )


def _refuse_kinds(jobs: Mapping[str, Any], scope: Scope) -> None:
    """Refuse what cannot run here, before any value of it is looked at."""
    for name, node in jobs.items():
        kind = str(getattr(node, "type", type(node).__name__))
        where = f"{'Pipeline' if kind == 'pipeline' else 'Step'} {scope.prefix + name!r}"
        component: Any = getattr(node, "component", None)
        if type(component).__name__ == "FlowComponent":
            raise PipelineError(
                f"{where} is a prompt flow, which needs Azure's promptflow service: call your "
                "model from a command, or use --on azureml."
            )
        if kind not in ("pipeline", "command"):
            raise PipelineError(f"{where} {explain_refusal(kind)}, or use --on azureml.")
        if isinstance(component, str) and (
            defined := find_definition("component", component, scope.base)
        ):
            scope.sources.tell_definition(component, defined[0])
            # azure-ai-ml has no public name for it.
            component = node._component = load_definition("component", defined[0])  # noqa: SLF001
        elif isinstance(component, str):
            registry = _REGISTRY.match(component)
            what = f"component {registry[2]} of the registry {registry[1]}" if registry else (
                f"registered component {component.removeprefix('azureml:')}")  # fmt: skip
            raise PipelineError(
                f"{where} uses the {what}, which is not on this machine: load it from its "
                "component.yaml, or use --on azureml."
            )
        if kind == "pipeline":
            base = Path(getattr(component, "base_path", None) or scope.base)
            _refuse_kinds(component.jobs, Scope(f"{scope.prefix}{name}.", base, scope.sources))


def _read_steps(jobs: Mapping[str, Any], scope: Scope) -> Iterator[Step]:
    """Yield the commands of a pipeline and of its nested pipelines, each after those it needs."""
    pending = dict(jobs)
    while pending:
        # In a pipeline from YAML, a job can come before the job whose outputs it takes.
        for name, node in pending.items():
            data = (data for _, data in flatten_inputs(getattr(node, "inputs", {})))
            bindings = [binding for item in data for binding in find_bindings(item)]
            used = {b.split(".")[2] for b in bindings if b.startswith("parent.jobs.")}
            if name not in used and not (used & pending.keys()):
                break
        else:
            names = ", ".join(scope.prefix + name for name in pending)
            raise PipelineError(
                f"The steps {names} wait for each other: let one of them take its input from "
                "elsewhere."
            )
        del pending[name]
        component = node.component
        if node.type == "pipeline":
            where = f"Pipeline {scope.prefix + name!r}"
            inner = Scope(
                f"{scope.prefix}{name}.",
                Path(getattr(component, "base_path", None) or scope.base),
                scope.sources,
                owners=scope.owners,
            )
            inner.inputs = _read_values(node, component, scope, where)
            inner.output_types = _list_output_types(component.outputs)
            yield from _read_steps(component.jobs, inner)
            scope.outputs[name] = _read_outputs(component.outputs, inner)
            for output, ref in scope.outputs[name].items():
                _bind_output(node, output, ref, scope)
        else:
            step = _read_step(name, node, scope, f"Step {scope.prefix + name!r}")
            scope.outputs[name] = {output: Ref(step.name, output) for output in step.outputs}
            scope.owners[id(node)] = step.name
            yield step


def _list_output_types(outputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the declared type of each output of a pipeline that declares one."""
    declared = {name: getattr(output, "_data", output) for name, output in outputs.items()}
    return {
        name: str(output.type)
        for name, output in declared.items()
        if type(output).__name__ == "Output" and output.type
    }


def _bind_output(node: Any, output: str, ref: Ref, scope: Scope) -> str | None:
    """Note the pipeline's output that a node's output is bound to, and return its type."""
    data: Any = getattr(node.outputs.get(output), "_data", None)
    if type(data).__name__ == "Output":
        return str(data.type) if data.type else None
    for binding in find_bindings(data):
        if binding.startswith("parent.outputs."):
            name = binding.removeprefix("parent.outputs.")
            scope.bound[name] = ref
            return scope.output_types.get(name)
    return None


def _read_step(name: str, node: Any, scope: Scope, where: str) -> Step:
    component = node.component
    if component.name == "expression_component":
        raise PipelineError(
            f"{where} is an expression on an input ({component.display_name}), which only Azure ML "
            "evaluates: give the result as an input of the pipeline, or use --on azureml."
        )
    if not component.command:
        raise PipelineError(f"{where} has no command.")
    resources = node.resources or getattr(component, "resources", None)
    spread = node.distribution or getattr(component, "distribution", None)
    instances = _read_number(resources, "instance_count", 1, where)
    processes = _read_number(spread, "process_count_per_instance", 1, where)
    servers = 0.0
    distribution = str(_read_field(spread, "type") or "").lower() or None
    if distribution is not None and distribution not in _DISTRIBUTIONS:
        raise PipelineError(
            f"{where} is distributed with {distribution}, which runs with --on azureml only: "
            f"here {' and '.join(_DISTRIBUTIONS)} run."
        )
    if distribution == "tensorflow":
        # Each worker and parameter server is an instance of its own.
        workers = _read_number(spread, "worker_count", 0, where) or instances
        servers = _read_number(spread, "parameter_server_count", 0, where)
        instances, processes = workers + servers, 1
    if instances > 1 and distribution is None:
        raise PipelineError(
            f"{where} asks for {instances:g} instances but names no distribution: "
            "set distribution: {type: mpi} in its component.yaml or on the step."
        )
    own_variables = getattr(node, "environment_variables", None) or {}
    variables = {**(component.environment_variables or {}), **own_variables}
    code, includes = _find_code(component, where)
    outputs = read_ports(component.outputs)
    for output, port in outputs.items():
        kind = _bind_output(node, output, Ref(scope.prefix + name, output), scope)
        outputs[output] = replace(port, type=kind or port.type)
    environment = getattr(node, "environment", None) or component.environment
    return Step(
        name=scope.prefix + name,
        component=name_component(component, name),
        command=str(component.command),
        code=code,
        includes=includes,
        inputs=read_ports(component.inputs),
        outputs=outputs,
        values=_read_values(node, component, scope, where),
        environment={key: str(value) for key, value in variables.items()},
        instances=int(instances),
        processes=int(processes),
        servers=int(servers),
        distribution=distribution,
        timeout_sec=_read_number(getattr(node, "limits", None), "timeout", 0, where) or None,
        retries=int(_read_number(getattr(node, "retry_settings", None), "max_retries", 0, where)),
        wanted=read_environment(environment, scope.sources, scope.base, where),
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


def _find_code(component: Any, where: str) -> CodeSource:
    """Return the folder or file of a component's code, and what it includes."""
    base = Path(component.base_path)
    includes = list[Path]()
    for entry in getattr(component, "additional_includes", None) or ():
        if not isinstance(entry, str):
            raise PipelineError(
                f"{where} includes an artifact feed, which only Azure ML can reach."
            )
        includes.append((base / entry).resolve())
    code = component.code
    if _REMOTE_CODE.match(str(code)):
        raise PipelineError(f"{where} takes its code from {code}, which is not on this machine.")
    found = None if code is None else (base / str(code)).resolve(), tuple(includes)
    for path in includes:
        if not path.exists():
            raise PipelineError(f"{where}: additional_includes names {path}, which does not exist.")
    if found[0] is not None and not found[0].exists():
        raise PipelineError(f"{where}: its code {found[0]} does not exist.")
    return found


def _read_values(node: Any, component: Any, scope: Scope, where: str) -> dict[str, Value]:
    """Return the value of each input of a node's component: the given one, else the default."""
    bound = dict(flatten_inputs(node.inputs))
    given = {key: resolve_value(data, scope, where) for key, data in bound.items()}
    ports = read_ports(component.inputs)
    for name in given.keys() - ports.keys():
        # A pipeline of a YAML file declares its inputs by their values.
        kind = getattr(bound[name], "type", None) if isinstance(given[name], Path) else ""
        ports[name] = Port(name, str(kind or ""), optional=True)
    values: dict[str, Value] = {}
    for name, port in ports.items():
        label = f"{where}: input {name}"
        value = given.get(name)
        value = port.default if value is None else value
        is_top = where == "The pipeline"
        # An argument without annotation matters only to the steps that need it.
        if value is None and not port.optional and (port.type or not is_top):
            asked = [b.split(".", 2)[2] for b in find_bindings(bound.get(name))]
            asked = [name] if is_top else asked
            hint = f": give --set {asked[0]}=…" if asked and not scope.prefix else ""
            raise PipelineError(f"{label} is not given{hint}.")
        if isinstance(value, str) and port.is_path:
            value = scope.sources.find(value, scope.base, where=label)
        if isinstance(value, Path):
            value = _check_path(value, port, label)
        elif value is not None and not isinstance(value, (Ref, Parts)):
            value = check_literal(value, port, where=label)
        values[name] = value
    return values


def _check_path(path: Path, port: Port, label: str) -> Path:
    """Return the path of an input if it is what the port declares.

    Raises:
        PipelineError: It is not.
    """
    if port.type and not port.is_path:
        raise PipelineError(f"{label} is the path {path}, but must be of type {port.type}.")
    if not path.exists():
        raise PipelineError(f"{label} is {path}, which does not exist.")
    if port.type == "uri_folder" and not path.is_dir():
        if find_cache_folder() in path.parents:  # a download lies in a folder of its own
            return path.parent
        raise PipelineError(f"{label} is the file {path}, but must be a folder (uri_folder).")
    if port.type == "uri_file" and not path.is_file():
        raise PipelineError(f"{label} is the folder {path}, but must be a file (uri_file).")
    return path


def _read_outputs(outputs: Mapping[str, Any], scope: Scope) -> dict[str, Ref]:
    """Return the sources of a pipeline's outputs."""
    found = {name: ref for name, ref in scope.bound.items() if name in outputs}
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
            type=str(getattr(item, "type", "string") or ""),
            optional=bool(getattr(item, "optional", False)),
            default=default if isinstance(default, (str, int, float, bool)) else None,
            minimum=None if low is None else float(low),
            maximum=None if high is None else float(high),
            enum=tuple(getattr(item, "enum", None) or ()),
        )
    return found
