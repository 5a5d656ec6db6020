"""What the fields of a command in YAML may hold, asked once azure-ai-ml has refused a file.

azure-ai-ml tries each kind of step in turn, and its answer is often that of another kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow_perf.pipelines.bindings import find_bindings, find_malformed
from mlflow_perf.pipelines.values import suggest_name

Fault = tuple[tuple[str, ...], str]
"""The keys that lead to a value, and what is wrong with it."""

LITERALS = ("integer", "number", "string", "boolean")
"""The types of inputs that are no data."""

_TEXT, _PAIRS = "a text", "fields with values"
_FIELDS = {
    **dict.fromkeys(
        ("code", "command", "compute", "description", "display_name", "experiment_name", "name"),
        _TEXT,
    ),
    **dict.fromkeys(
        ("distribution", "environment_variables", "identity", "inputs", "limits", "outputs",
         "properties", "queue_settings", "resources", "services", "tags"),
        _PAIRS,
    ),
    **dict.fromkeys(("component", "environment"), f"{_TEXT}, or {_PAIRS}"),
    **dict.fromkeys(("parent_job_name", "type", "$schema"), ""),
}  # fmt: skip
_INSTEAD = {"retry_settings": "use --retries", "environments": "use environment"}
_DATA = ("uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model")
_PORTS = {
    "inputs": {
        "type": (*_DATA, *LITERALS),
        "mode": ("ro_mount", "rw_mount", "download", "direct", "eval_mount", "eval_download"),
    },
    "outputs": {"type": _DATA, "mode": ("rw_mount", "upload", "mount", "direct")},
}
_NUMBERED = ("mpi", "pytorch", "tensorflow")  # the distributions whose fields are all numbers
_NUMBERS = {
    "distribution": ("process_count_per_instance", "worker_count", "parameter_server_count"),
    "limits": ("timeout",),
    "resources": ("instance_count",),
}


def find_fault(data: Any) -> Fault | None:
    """Return the first field of a job's command that is wrong; None if none is known to be.

    Args:
        data: What a YAML file holds that azure-ai-ml has refused.
    """
    if not isinstance(data, Mapping):
        return None
    jobs = data.get("jobs")
    if "jobs" not in data:
        return next(_check_command((), data), None) if data.get("type") == "command" else None
    if not isinstance(jobs, Mapping):
        return ("jobs",), "must have the name of each step before its fields"
    for name, job in jobs.items():
        is_command = isinstance(job, Mapping) and job.get("type", "command") == "command"
        if is_command and (fault := next(_check_command(("jobs", str(name)), job), None)):
            return fault
    return None


def _check_command(keys: tuple[str, ...], job: Mapping[str, Any]) -> Iterator[Fault]:
    for field, value in job.items():
        at = (*keys, str(field))
        if (wanted := _FIELDS.get(str(field))) is None:
            if "command" in job and keys:  # a component's file has other fields at its top
                hint = _INSTEAD.get(str(field))
                told = f": {hint}" if hint else suggest_name(str(field), list(_FIELDS))
                yield at, f"a command has no such field{told}"
        elif value is None or not wanted or _is_binding(value):
            continue
        elif isinstance(value, Mapping):
            if _PAIRS not in wanted:
                yield at, f"must be {wanted}, not {_show(value)}"
            yield from _check_pairs(at, str(field), value)
        elif _TEXT not in wanted or not isinstance(value, str):
            yield at, f"must be {wanted}, not {_show(value)}"


def _check_pairs(at: tuple[str, ...], field: str, pairs: Mapping[Any, Any]) -> Iterator[Fault]:
    numbers = _NUMBERS.get(field, ())
    takes_others = field != "distribution" or pairs.get("type") not in _NUMBERED
    for name, value in pairs.items():
        place, found = (*at, str(name)), find_bindings(str(value))
        if not isinstance(name, str):
            yield at, f"the name {name!r} is no text for YAML: put it in quotes"
        elif field in _PORTS and (wrong := next(filter(None, map(find_malformed, found)), "")):
            yield place, f"it {wrong}"
        elif field in _PORTS and isinstance(value, Mapping):
            if not isinstance(value.get("path", ""), str):
                yield (*place, "path"), f"must be a text, not {_show(value['path'])}"
            for key, choices in _PORTS[field].items():
                yield from _check_choice((*place, key), value.get(key), choices)
        elif field == "distribution" and name == "type":
            yield from _check_choice(place, value, (*_NUMBERED, "ray"))
        elif name in numbers and not _is_number(value):
            yield place, f"must be a whole number, not {_show(value)}"
        elif name not in numbers and not takes_others:
            yield place, f"it has no such field{suggest_name(name, list(numbers))}"


def _check_choice(at: tuple[str, ...], value: Any, choices: tuple[str, ...]) -> Iterator[Fault]:
    known = value is None or str(value).lower() in choices
    if not (known or _is_binding(value)):
        yield at, f"{_show(value)} is not known{suggest_name(str(value), list(choices))}"


def _is_number(value: Any) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole or _is_binding(value) or bool(re.fullmatch(r"\s*[-+]?\d+\s*", str(value)))


def _is_binding(value: Any) -> bool:
    return isinstance(value, str) and "${{" in value


def _show(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}…"
