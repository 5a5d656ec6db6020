"""From a pipeline file and `--set` values to the pipeline job.

Imports `errors`, `azure`, `values` and `paths`.
"""

from __future__ import annotations

import dis
import importlib.util
import inspect
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from mlflow_perf.errors import MissingDependencyError, PipelineError
from mlflow_perf.pipelines.azure import path_input
from mlflow_perf.pipelines.paths import local_path
from mlflow_perf.pipelines.values import did_you_mean, parse

__all__ = ["load_job", "parse_settings"]

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return `key=value` texts as a dictionary.

    Raises:
        PipelineError: A text has no `=`, or a key comes twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise PipelineError(f"--set {text!r} must be key=value.")
        if key.strip() in found:
            raise PipelineError(f"--set {key.strip()} is given twice.")
        found[key.strip()] = value
    return found


def load_job(file: str, settings: Mapping[str, str]) -> tuple[Any, Path]:
    """Return the pipeline job that a file defines, with values set, and the file's path.

    Args:
        file: Path of a Python file with one `@dsl.pipeline` function; `FILE:NAME` picks one of
            several.
        settings: Values of the pipeline's inputs, by name (`group.member` within a group).

    Raises:
        PipelineError: The file cannot be read or fails, defines no pipeline or several, or a
            setting names no input or is of the wrong type.
        MissingDependencyError: azure-ai-ml is not installed.
    """
    path, name = _split_name(file)
    module = _import(path)
    # azure-ai-ml warns of experimental classes and of settings of nested pipelines; its own import
    # sets the level, so this stands after it.
    logging.getLogger("azure.ai.ml").setLevel(logging.ERROR)
    made = _pick(module, path, name)
    if not callable(made):
        if settings:
            raise PipelineError(
                f"{path} defines a finished job, which takes no --set: define a @dsl.pipeline."
            )
        return made, path
    arguments = _arguments(made, settings)
    try:
        return made(**arguments), path
    # The function is a person's own code, run to describe the graph.
    except (Exception, SystemExit) as error:
        raise PipelineError(_fault(f"The pipeline {made.__name__} of {path}", error)) from error


def _split_name(file: str) -> tuple[Path, str | None]:
    text, colon, name = file.rpartition(":")
    if colon and text.endswith(".py"):
        return Path(text), name
    return Path(file), None


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise PipelineError(f"The pipeline file {path} does not exist.")
    # A name of its own: `enum.py` or `mlflow.py` must not stand in for what others import.
    name = f"_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise PipelineError(f"The pipeline file {path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    # As if it were run as a script: its folder is where it imports from.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "azure":
            raise MissingDependencyError("azure-ai-ml", "pipelines") from error
        raise PipelineError(_fault(f"The pipeline file {path}", error)) from error
    # The file is a person's own code: whatever it raises is reported as its fault, by name.
    except (Exception, SystemExit) as error:
        raise PipelineError(_fault(f"The pipeline file {path}", error)) from error
    return module


def _fault(what: str, error: BaseException) -> str:
    text = " ".join(str(error).split())[:600]
    hint = ""
    if "Unsupported annotation type" in text:
        hint = " (azure-ai-ml cannot read it under `from __future__ import annotations`)"
    return f"{what} fails: {type(error).__name__}: {text}{hint}"


def _pick(module: ModuleType, path: Path, name: str | None) -> Any:
    """Return the pipeline to run: the one that is named, or the only one."""
    found = {key: value for key, value in vars(module).items() if _is_pipeline(value, module)}
    if name is not None:
        if name not in found:
            raise PipelineError(f"{path} defines no pipeline {name!r}{did_you_mean(name, found)}.")
        return found[name]
    # One that begins with an underscore is a part of another, and so is one that another calls.
    distinct = {id(value): key for key, value in found.items() if not key.startswith("_")}
    if len(distinct) > 1:
        called = _called_by_others(found)
        distinct = {i: key for i, key in distinct.items() if i not in called} or distinct
    if not distinct:
        raise PipelineError(f"{path} defines no pipeline: decorate a function with @dsl.pipeline.")
    if len(distinct) > 1:
        names = ", ".join(sorted(distinct.values()))
        raise PipelineError(f"{path} defines several pipelines ({names}): name one, {path}:NAME.")
    return found[next(iter(distinct.values()))]


def _called_by_others(pipelines: Mapping[str, Any]) -> set[int]:
    """Return the identities of the pipelines that other ones of the file name."""
    called: set[int] = set()
    for pipeline in pipelines.values():
        code = getattr(inspect.unwrap(pipeline), "__code__", None)
        named = _globals_in(code) if code is not None else set()
        called |= {id(pipelines[n]) for n in named & pipelines.keys()} - {id(pipeline)}
    return called


def _globals_in(code: CodeType) -> set[str]:
    """Return the global names that a function reads, those of the functions in it included."""
    read = {str(i.argval) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    inner = (_globals_in(part) for part in code.co_consts if isinstance(part, CodeType))
    return read.union(*inner)


def _is_pipeline(value: Any, module: ModuleType) -> bool:
    if getattr(value, "_is_dsl_func", False):
        return getattr(value, "__module__", None) == module.__name__
    return type(value).__name__ == "PipelineJob"


def _arguments(function: Any, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the function's arguments from the settings, each of the type that it declares."""
    parameters = inspect.signature(function).parameters
    known = _names(parameters)
    arguments: dict[str, Any] = {}
    for key, text in settings.items():
        if key not in known:
            raise PipelineError(f"--set {key}: no such input{did_you_mean(key, known)}.")
        value = _typed(key, text, known[key])
        group, dot, member = key.partition(".")
        if dot:
            arguments.setdefault(group, _copy(parameters[group].default))
            setattr(arguments[group], member, value)
        else:
            arguments[key] = value
    return arguments


def _names(parameters: Mapping[str, inspect.Parameter]) -> dict[str, str]:
    """Return the type of each input, members of groups as `group.member`."""
    found: dict[str, str] = {}
    for name, parameter in parameters.items():
        members = _group_members(parameter.default)
        if members:
            found |= {f"{name}.{k}": _KINDS.get(type(v), "string") for k, v in members.items()}
        else:
            found[name] = _kind(parameter)
    return found


def _group_members(default: Any) -> dict[str, Any]:
    """Return the members of a default that is an azure-ai-ml group, else nothing."""
    if default is None or not getattr(type(default), "__dsl_group__", False):
        return {}
    return dict(vars(default))


def _copy(group: Any) -> Any:
    return type(group)(**vars(group))


def _kind(parameter: inspect.Parameter) -> str:
    """Return the declared type: from the annotation, else from the default."""
    annotation = parameter.annotation
    if isinstance(annotation, type) and annotation in _KINDS:
        return _KINDS[annotation]
    declared = getattr(annotation, "type", None)
    if isinstance(declared, str):
        return declared
    declared = getattr(parameter.default, "type", None)
    if isinstance(declared, str):
        return declared
    return _KINDS.get(type(parameter.default), "string")


def _typed(key: str, text: str, kind: str) -> Any:
    if kind in _KINDS.values():
        return parse(text, kind, where=f"--set {key}")
    path = local_path(text, Path.cwd(), where=f"--set {key}")
    return path_input(kind, path)
