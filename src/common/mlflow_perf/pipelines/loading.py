"""Load the pipeline job that a Python file defines, with the values of `--set`."""

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
from mlflow_perf.pipelines.azure import make_path_input
from mlflow_perf.pipelines.paths import find_local_path
from mlflow_perf.pipelines.values import parse_literal, suggest_name

__all__ = ["load_job", "parse_settings"]

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return `key=value` texts as a dictionary.

    Raises:
        PipelineError: A text has no `=`, or a key is given twice.
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
    text, colon, name = file.rpartition(":")
    named = bool(colon) and text.endswith(".py")
    path = Path(text if named else file)
    module = _import_file(path)
    # azure-ai-ml warns about experimental classes and settings of nested pipelines. Its import sets
    # the level, so it is changed afterwards.
    logging.getLogger("azure.ai.ml").setLevel(logging.ERROR)
    made = _pick_pipeline(module, path, name if named else None)
    if not callable(made):
        if settings:
            raise PipelineError(
                f"{path} defines a finished job, which takes no --set: define a @dsl.pipeline."
            )
        return made, path
    arguments = _make_arguments(made, settings)
    try:
        return made(**arguments), path
    # The function is the user's own code, which describes the graph.
    except (Exception, SystemExit) as error:
        what = f"The pipeline {made.__name__} of {path}"
        raise PipelineError(_describe_failure(what, error)) from error


def _import_file(path: Path) -> ModuleType:
    """Return the module of a Python file, imported as if it were run as a script."""
    if not path.is_file():
        raise PipelineError(f"The pipeline file {path} does not exist.")
    # The prefix keeps a file `enum.py` or `mlflow.py` from replacing the module that others import.
    name = f"_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise PipelineError(f"The pipeline file {path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # The file is the user's own code: whatever it raises is reported as an error of that file.
    except (Exception, SystemExit) as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if missing.split(".")[0] == "azure":
            raise MissingDependencyError("azure-ai-ml", "pipelines") from error
        raise PipelineError(_describe_failure(f"The pipeline file {path}", error)) from error
    return module


def _describe_failure(what: str, error: BaseException) -> str:
    text = " ".join(str(error).split())[:600]
    hint = ""
    if "Unsupported annotation type" in text:
        hint = " (azure-ai-ml cannot read it under `from __future__ import annotations`)"
    return f"{what} fails: {type(error).__name__}: {text}{hint}"


def _pick_pipeline(module: ModuleType, path: Path, name: str | None) -> Any:
    """Return the named pipeline of a module, or its only one."""
    found = {
        key: value
        for key, value in vars(module).items()
        if (
            getattr(value, "__module__", None) == module.__name__
            if getattr(value, "_is_dsl_func", False)
            else type(value).__name__ == "PipelineJob"
        )
    }
    if name is not None:
        if name not in found:
            raise PipelineError(f"{path} defines no pipeline {name!r}{suggest_name(name, found)}.")
        return found[name]
    # A pipeline that begins with an underscore, or that another one calls, is a part of another.
    distinct = {id(value): key for key, value in found.items() if not key.startswith("_")}
    if len(distinct) > 1:
        called: set[int] = set()
        for pipeline in found.values():
            code = getattr(inspect.unwrap(pipeline), "__code__", None)
            names = found.keys() & (_find_globals(code) if code is not None else ())
            called |= {id(found[n]) for n in names} - {id(pipeline)}
        distinct = {i: key for i, key in distinct.items() if i not in called} or distinct
    if not distinct:
        raise PipelineError(f"{path} defines no pipeline: decorate a function with @dsl.pipeline.")
    if len(distinct) > 1:
        listed = ", ".join(sorted(distinct.values()))
        raise PipelineError(f"{path} defines several pipelines ({listed}): name one, {path}:NAME.")
    return found[next(iter(distinct.values()))]


def _find_globals(code: CodeType) -> set[str]:
    """Return the global names that a function reads, including those of its inner functions."""
    read = {str(i.argval) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    inner = (_find_globals(part) for part in code.co_consts if isinstance(part, CodeType))
    return read.union(*inner)


def _make_arguments(function: Any, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the function's arguments from the settings, each of its declared type."""
    parameters = inspect.signature(function).parameters
    kinds: dict[str, str] = {}
    for name, parameter in parameters.items():
        annotation, default = parameter.annotation, parameter.default
        declared = [getattr(holder, "type", None) for holder in (annotation, default)]
        texts = [kind for kind in declared if isinstance(kind, str)]
        # The default of a group is an object whose attributes are the members.
        if getattr(type(default), "__dsl_group__", False):
            members = vars(default).items()
            kinds |= {f"{name}.{k}": _KINDS.get(type(v), "string") for k, v in members}
        elif isinstance(annotation, type) and annotation in _KINDS:
            kinds[name] = _KINDS[annotation]
        else:
            kinds[name] = texts[0] if texts else _KINDS.get(type(default), "string")
    arguments: dict[str, Any] = {}
    for key, text in settings.items():
        where = f"--set {key}"
        if key not in kinds:
            raise PipelineError(f"{where}: no such input{suggest_name(key, kinds)}.")
        if kinds[key] in _KINDS.values():
            value: Any = parse_literal(text, kinds[key], where=where)
        else:
            value = make_path_input(kinds[key], find_local_path(text, Path.cwd(), where=where))
        group, dot, member = key.partition(".")
        if dot:
            original = parameters[group].default
            arguments.setdefault(group, type(original)(**vars(original)))
            setattr(arguments[group], member, value)
        else:
            arguments[key] = value
    return arguments
