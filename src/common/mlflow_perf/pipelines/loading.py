"""Load the jobs that a file defines or submits, with the values of `--set`.

A file is a script or notebook that defines or submits a pipeline, or the YAML of a pipeline or a
command.
"""

from __future__ import annotations

import ast
import dis
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from mlflow_perf.core.extras import needing
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.azure import is_job, make_path_input, unify_job
from mlflow_perf.pipelines.graph import Graph
from mlflow_perf.pipelines.read_graph import read_graph
from mlflow_perf.pipelines.scripts import ForkEndedError, ending_forks, run_script
from mlflow_perf.pipelines.sources import Sources
from mlflow_perf.pipelines.stand_in import Record
from mlflow_perf.pipelines.values import parse_literal, suggest_name
from mlflow_perf.pipelines.yaml_faults import check_yaml, explain
from mlflow_perf.pipelines.yaml_file import list_repeated, read_yaml

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string"}
_log = get_logger("mlflow_perf.pipelines")


@dataclass(frozen=True)
class LoadedJob:
    """A job that a file hands over.

    Attributes:
        job: The object of azure-ai-ml, with the values of `--set`.
        read: Returns its graph, as `read_graph`: that of a submitted job is as it was then.
    """

    job: Any
    read: Callable[[], Graph]


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
    """Return the only job that a file hands over, and the file's path; see `load_jobs`.

    Raises:
        PipelineError: As `load_jobs`, or the file submits several jobs.
        MissingDependencyError: azure-ai-ml is not installed.
    """
    jobs, path = load_jobs(file, settings)
    if len(jobs) > 1:
        raise PipelineError(f"{path} submits {len(jobs)} jobs.")
    return jobs[0].job, path


def load_jobs(
    file: str,
    settings: Mapping[str, str],
    *,
    sources: Sources | None = None,
    arguments: Sequence[str] = (),
) -> tuple[list[LoadedJob], Path]:
    """Return the jobs that a file hands over, with values set, and the file's path.

    Args:
        file: Path of a `.py`, `.ipynb` or `.yml` file; `FILE.py:NAME` names a job, a pipeline or a
            function that returns one.
        settings: Values of the pipeline's inputs, by name (`group.member` within a group).
        sources: Gets the data and environments that a script creates.
        arguments: Arguments of a script.

    Raises:
        PipelineError: The file cannot be read or fails, hands over nothing, or a setting names no
            input or is of the wrong type.
        MissingDependencyError: azure-ai-ml is not installed.
    """
    sources = sources or Sources()
    text, colon, name = file.rpartition(":")
    named = bool(colon) and text.endswith((".py", ".ipynb"))
    path = Path(text if named else file)
    if not path.is_file():
        fault = "is no file" if path.exists() else "does not exist"
        raise PipelineError(f"The pipeline file {path} {fault}.")
    with needing("azure-ai-ml", "pipelines"):
        import azure.ai.ml  # noqa: F401 - its import sets the level that is changed below
    # azure-ai-ml warns about experimental classes and settings of nested pipelines.
    logging.getLogger("azure.ai.ml").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = _Asked(path, path.resolve(), settings, sources, Path.cwd())
        if path.suffix in (".yml", ".yaml"):
            jobs = [asked.hand_over(_load_yaml(path))]
            asked.check_names()
            return jobs, path
        if path.suffix not in (".py", ".ipynb"):
            raise PipelineError(
                f"{path} is none of .py, .ipynb, .yml and .yaml: hand over the pipeline's script, "
                "its notebook or its YAML file."
            )
        return _load_script(asked, name if named else None, arguments), path


def _load_yaml(path: Path) -> Any:
    """Return the job of a YAML file.

    Raises:
        PipelineError: It cannot be read; the message names the line where it is known.
    """
    from azure.ai.ml import load_job as load

    data = read_yaml(path)
    for line, key in list_repeated(path.read_text(encoding="utf-8-sig")):
        _log.warning("%s, line %d: %r comes twice; the last one counts.", path, line, key)
    check_yaml(path, data)
    try:
        return load(str(path.resolve()))
    # azure-ai-ml raises several kinds of exceptions for a file that is not as it should be.
    except Exception as error:
        raise PipelineError(explain(path, data, error)) from error


@dataclass(frozen=True)
class _Asked:
    """What the user asked for.

    Attributes:
        path: The file, as the user named it.
        source: Its absolute path.
        settings: Values of the pipeline's inputs.
        sources: Gets the data and environments.
        folder: The user's, where the paths of the settings start; a script may run elsewhere.
        known: The names of the inputs of all jobs that were handed over.
    """

    path: Path
    source: Path
    settings: Mapping[str, str]
    sources: Sources
    folder: Path
    known: dict[str, None] = field(default_factory=dict)

    def check_names(self) -> None:
        """Refuse a setting that names an input of none of the jobs.

        Raises:
            PipelineError: There is one.
        """
        for key in self.settings:
            if key not in self.known:
                hint = suggest_name(key, self.known)
                raise PipelineError(f"--set {key}: {self.path} has no such input{hint}.")

    def set_inputs(self, job: Any) -> None:
        """Set those inputs of a finished job that it has, each of its type.

        Raises:
            PipelineError: A setting is of the wrong type.
        """
        inputs = getattr(job, "inputs", None) or {}
        self.known.update(dict.fromkeys(inputs))
        for key, text in self.settings.items():
            if key not in inputs:
                continue
            before = getattr(job.inputs[key], "_data", job.inputs[key])
            kind = getattr(before, "type", None) or _KINDS.get(type(before), "string")
            value = self.read_setting(key, text, str(kind))
            if hasattr(type(job.inputs[key]), "_build_data"):  # a script may set it once more
                setattr(job.inputs, key, value)
            else:
                job.inputs[key] = value

    def read_setting(self, key: str, text: str, kind: str) -> Any:
        """Return the text of a setting as a value or path of a type.

        Raises:
            PipelineError: It is none.
        """
        where = f"--set {key}"
        if kind in _KINDS.values():
            return parse_literal(text, kind, where=where)
        return make_path_input(kind, self.sources.find(text, self.folder, where=where))

    def hand_over(self, job: Any) -> LoadedJob:
        """Return a job with the settings."""
        self.set_inputs(job)
        return self.load(unify_job(job))

    def load(self, job: Any) -> LoadedJob:
        """Return a job as it is."""
        return LoadedJob(job, partial(read_graph, job, source=self.source, sources=self.sources))


def _load_script(asked: _Asked, name: str | None, arguments: Sequence[str]) -> list[LoadedJob]:
    """Return the jobs that a script or notebook submits or defines."""
    path = asked.path
    record = Record(asked.sources, lambda job: asked.hand_over(job).read())
    # The prefix keeps a file `enum.py` or `mlflow.py` from replacing the module that others import.
    is_notebook = path.suffix == ".ipynb"
    own = "__main__" if is_notebook else f"_pipeline_{path.stem}"
    module = run_script(path, record, name=own, arguments=arguments)
    if name is None and not record.jobs and not is_notebook and _has_main_guard(path):
        try:
            run_script(path, record, name="__main__", arguments=arguments)
        except PipelineError:
            # Its pipeline may be meant to be run by itself.
            if arguments or not (asked.settings and _list_pipelines(module)):
                raise
    taken = record.close()
    if name is None and taken:
        submitted = {id(one.job): one.job for one in taken}
        for job in submitted.values():  # a wrong setting is told, also where no graph is read
            asked.set_inputs(job)
        asked.check_names()
        unified = {key: unify_job(job) for key, job in submitted.items()}
        return [LoadedJob(unified[id(one.job)], one.read) for one in taken]
    made = _pick_pipeline(module, path, name, record)
    if is_job(made):
        jobs = [asked.hand_over(made)]
        asked.check_names()
        return jobs
    given = _make_arguments(made, asked)
    try:
        with ending_forks():
            job = made(**given)
    except ForkEndedError:
        raise
    # The function is the user's own code, which describes the graph.
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:600]
        shown = getattr(made, "__name__", name)
        raise PipelineError(
            f"The pipeline {shown} of {path} fails: {type(error).__name__}: {text}"
        ) from error
    # A factory may return the pipeline's function instead of its job.
    job = job() if getattr(job, "_is_dsl_func", False) else job
    if not is_job(job):
        raise PipelineError(f"{path}:{name} returns no pipeline, but {type(job).__name__}.")
    return [asked.load(unify_job(job))]


def _has_main_guard(path: Path) -> bool:
    """Return whether a script compares `__name__` with `"__main__"`."""
    tree = ast.parse(path.read_text(encoding="utf-8-sig", errors="replace"))
    for compare in (node for node in ast.walk(tree) if isinstance(node, ast.Compare)):
        parts = list(ast.walk(compare))
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        values = [part.value for part in parts if isinstance(part, ast.Constant)]
        if "__name__" in names and "__main__" in values:
            return True
    return False


def _list_pipelines(module: ModuleType) -> dict[str, Any]:
    """Return the finished jobs and pipeline functions of a module, by name.

    Another job counts only without them, and if no function takes it as one of its steps.
    """
    jobs = {key: value for key, value in vars(module).items() if is_job(value)}
    functions = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    }
    found = {k: v for k, v in functions.items() if getattr(v, "_is_dsl_func", False)}
    found |= {k: v for k, v in jobs.items() if v.type == "pipeline"}
    steps = {name for function in functions.values() for name in _find_globals(function.__code__)}
    return found or {k: v for k, v in jobs.items() if k not in steps}


def _pick_pipeline(module: ModuleType, path: Path, name: str | None, record: Record) -> Any:
    """Return the named pipeline of a module, else its finished job, else its only function."""
    found = _list_pipelines(module)
    if name is not None:
        made = found.get(name, vars(module).get(name))
        if made is None or not (callable(made) or is_job(made)):
            raise PipelineError(f"{path} defines no pipeline {name!r}{suggest_name(name, found)}.")
        return made
    jobs = {id(v): v for v in found.values() if is_job(v)}
    if len(jobs) == 1:
        return next(iter(jobs.values()))
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
        if record.refusals:
            raise record.refusals[0]
        raise PipelineError(
            f"{path} submits no job and defines no pipeline: if a function builds it, name it "
            f"({path}:FUNCTION); else decorate one with @dsl.pipeline."
        )
    if len(distinct) > 1:
        listed = ", ".join(sorted(distinct.values()))
        raise PipelineError(
            f"{path} defines several pipelines or jobs ({listed}): name one, {path}:NAME."
        )
    return found[next(iter(distinct.values()))]


def _find_globals(code: CodeType) -> set[str]:
    """Return the global names that a function reads, including those of its inner functions."""
    read = {str(i.argval) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    inner = (_find_globals(part) for part in code.co_consts if isinstance(part, CodeType))
    return read.union(*inner)


def _make_arguments(function: Any, asked: _Asked) -> dict[str, Any]:
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
    for key, text in asked.settings.items():
        if key not in kinds:
            raise PipelineError(f"--set {key}: no such input{suggest_name(key, kinds)}.")
        value = asked.read_setting(key, text, kinds[key])
        group, dot, member = key.partition(".")
        if dot:
            original = parameters[group].default
            arguments.setdefault(group, type(original)(**vars(original)))
            setattr(arguments[group], member, value)
        else:
            arguments[key] = value
    return arguments
