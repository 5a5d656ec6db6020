"""What is wrong with the YAML of a job, where, and in words that help.

azure-ai-ml tries each kind of step in turn, and lists what keeps the file from being any of them.
"""

from __future__ import annotations

import ast
import datetime
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.refused_kinds import CONTROL_FLOW, explain_refusal
from mlflow_perf.pipelines.yaml_fields import LITERALS, find_fault
from mlflow_perf.pipelines.yaml_file import read_yaml

_MISSING, _UNKNOWN = "Missing data for required field.", "Unknown field."
# Of a kind that the step is not, most fields are missing; a wrong value is one of the right kind.
_WEIGHTS = {_MISSING: 3.0, _UNKNOWN: 1.0}
_WRONG_VALUE = 0.5
_NO_BINDING = "Value passed is not a data binding string"
_PROGRAM_LINE = re.compile(r'File \\*"[^"]*", line \d+')  # of azure-ai-ml's own files
Leaf = tuple[tuple[str, ...], str]


class YamlFile:
    """The text of a YAML file, to say in which line something is.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = path.read_text(encoding="utf-8", errors="replace").splitlines()

    def say(self, *keys: str) -> str:
        """Return the file, and the line of a key within others; of the last one that is found."""
        line, at, end = 0, 0, len(self._rows)
        for key in keys:
            pattern = re.compile(rf"(?:^|[\s{{,'\"]){re.escape(key)}['\"]?\s*:")
            found = (i for i in range(at, end) if pattern.search(self._rows[i]))
            if (at_key := next(found, None)) is None:
                break
            line, at = at_key + 1, at_key
            # What is further to the left is of something else.
            depth = _count_indent(self._rows[at])
            below = range(at + 1, end)
            end = next((i for i in below if _count_indent(self._rows[i]) <= depth), end)
        return f"{self._path}, line {line}" if line else str(self._path)

    def say_text(self, text: str) -> str:
        """Return the file, and the first line with a text."""
        line = next((i for i, row in enumerate(self._rows, 1) if text in row), 0)
        return f"{self._path}, line {line}" if line else str(self._path)


def _count_indent(row: str) -> float:
    """Return how far a row is to the right; one without content belongs to what is before it."""
    text = row.lstrip()
    return len(row) - len(text) if text and not text.startswith("#") else math.inf


def check_yaml(path: Path, data: Any) -> None:
    """Refuse what azure-ai-ml would fail at without a reason.

    Args:
        path: The file.
        data: What it holds.

    Raises:
        PipelineError: It is no job, or a name or a value in it is of a wrong kind.
    """
    file = YamlFile(path)
    if not isinstance(data, dict):
        return
    if "create_job" in data:
        raise PipelineError(f"{file.say('create_job')}: a schedule: give the job that it starts.")
    jobs, inputs = data.get("jobs"), data.get("inputs")
    declared = inputs.values() if isinstance(inputs, dict) else ()
    if any(isinstance(one, dict) and one.get("type") in LITERALS for one in declared):
        value = "or the value alone of each input, as in `rows: 5`"
        raise PipelineError(f"{path} is a component: give a pipeline that uses it, {value}.")
    for name, job in jobs.items() if isinstance(jobs, dict) else ():
        if not isinstance(name, str):
            raise PipelineError(
                f"{file.say('jobs')}: the name of a step is {name!r} for YAML: put it in quotes."
            )
        where = f"{file.say('jobs', name)}: jobs.{name}"
        if not isinstance(job, dict):
            raise PipelineError(f"{where} must have the fields of a step, not {job!r}.")
        kind, code = job.get("type"), job.get("code")
        if kind in CONTROL_FLOW:
            raise PipelineError(f"{where} {explain_refusal(kind)}.")
        # azure-ai-ml says that data is missing.
        if isinstance(code, str) and ":" not in code and not (path.parent / code).exists():
            raise PipelineError(f"{file.say_text(code)}: jobs.{name}.code: there is no {code}.")
    for keys, value in _walk(data):
        if isinstance(value, datetime.date):
            where = f"{file.say(*keys)}: {'.'.join(keys)}"
            raise PipelineError(f"{where}: {value} is a date for YAML: put it in quotes.")


def explain(path: Path, data: Any, error: Exception) -> str:
    """Return what azure-ai-ml finds wrong with a YAML file, and in which line.

    Args:
        path: The file.
        data: What it holds.
        error: What azure-ai-ml raised.
    """
    file, text = YamlFile(path), _PROGRAM_LINE.sub("", str(error))
    if (fault := find_fault(data)) is not None:
        keys, why = fault
        return f"{file.say(*keys)}: {'.'.join(keys)}: {why}."
    lines = re.findall(r"line (\d+)", text)
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    # Of each fault its message and path, in JSON; the message may hold a schema's answer in JSON.
    faults = re.findall(r'"message": ("(?:[^"\\]|\\.)*"),\s*"path": "(.*?)"', text)
    if faults:
        # A step with a command of its own is also told to have no component.
        others = [one for one in faults if not one[1].endswith(".component")]
        told, at = (others or faults)[0]
        message, names = str(json.loads(told)), [key for key in at.split(".") if key != "*"]
        if leaves := _find_nearest(message):
            names += leaves[0][0]
            message = "; or: ".join(dict.fromkeys(why for _, why in leaves))
        else:
            parts = [part for part in message.split("; ") if not part.startswith(_NO_BINDING)]
            message = "; ".join(dict.fromkeys(parts)) or message
        where = file.say(*names) if others else where
        # A name that is no file is also told to be no registered component, at length and first.
        if missing := re.search(r"No such file or directory: [^']+", message):
            message = missing[0]
        shown = " ".join(message.replace(chr(92) + "n", " ").split())[:400]
        return f"{where}: {'.'.join(names)}: {shown}"
    problem = getattr(error.__cause__ or error.__context__, "problem", None)
    if problem:
        return f"{where} is no YAML: {problem}."
    whole = re.search(r"definition for input binding (.*\}\})", text)
    if whole and whole[1].count("${{") > 1:
        return f"{file.say_text(whole[1])}: {whole[1]}: a value can hold one expression only."
    if binding := re.search(r"\$\{\{.*?\}\}", text):
        return f"{file.say_text(binding[0])}: {binding[0]} names nothing that this pipeline has."
    if bad := _find_bad_component(file, path, data):
        return bad
    shown = " ".join(text.split())
    if "type" in shown and "pipeline" in shown and "Couldn't" in shown:
        shown += " A pipeline's file begins with `type: pipeline`."
    return f"{where} cannot be read as a job: {shown[:600]}"


def _find_bad_component(file: YamlFile, path: Path, data: Any) -> str:
    """Return which component's file of a pipeline is no YAML; empty if none is known to be."""
    jobs = data.get("jobs") if isinstance(data, dict) else None
    for name, job in jobs.items() if isinstance(jobs, dict) else ():
        place = job.get("component") if isinstance(job, dict) else None
        if not isinstance(place, str) or not (path.parent / place).is_file():
            continue
        where = f"{file.say('jobs', name, 'component')}: jobs.{name}.component"
        try:
            if not isinstance(read_yaml(path.parent / place), dict):
                return f"{where}: {place} has no fields of a component."
        except PipelineError as error:
            return f"{where}: {error}"
    return ""


def _find_nearest(message: str) -> list[Leaf]:
    """Return what is wrong with a field, in the kind that the job is nearest to; empty if unknown.

    Other kinds may want other values of the same field.
    """
    answers = []
    with suppress(ValueError):  # one answer within a text
        start = message.index("{")
        answers.append(json.JSONDecoder().raw_decode(message, start)[0])
    for part in re.split(r"(?<=[}\]]); (?=[{\[])", message):
        with suppress(ValueError, SyntaxError):
            answers.append(ast.literal_eval(part))
    kinds = [
        [(keys, str(why)) for keys, why in _walk(answer) if keys and _NO_BINDING not in str(why)]
        for answer in answers
        if isinstance(answer, dict)
    ]
    nearest = min(
        filter(None, kinds),
        key=lambda leaves: sum(_WEIGHTS.get(why, _WRONG_VALUE) for _, why in leaves),
        default=[],
    )
    if not nearest:
        return []
    # A wrong value says more than a field that is missing or unknown beside it.
    field, first = min(nearest, key=lambda leaf: _WEIGHTS.get(leaf[1], _WRONG_VALUE))
    same = [leaf for leaves in kinds for leaf in leaves if leaf[0] == field]
    return [(field, first), *(leaf for leaf in same if leaf[1] not in _WEIGHTS)]


def _walk(data: Any, keys: Sequence[str] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each single value of nested data, with the keys that lead to it."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _walk(value, keys if key in ("_schema", None) else [*keys, str(key)])
    elif isinstance(data, list):
        for value in data:
            yield from _walk(value, keys)
    else:
        yield tuple(keys), data
