"""Find a registered asset by the YAML file that defines it, in the folder of its pipeline.

`az ml data create --file data.yml` and its like register what such a file says in a workspace. Here
the file itself is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from mlflow_perf.core.foreign_files import read_foreign
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.yaml_file import read_yaml

ANONYMOUS = "azureml_anonymous"
"""Name that azure-ai-ml gives to what has none."""

_ADDRESS = re.compile(r"^(?:azureml:)?([A-Za-z0-9][\w.\-]*)(?:@[\w\-]+|:([\w.\-]+))?$")
# The keys that the file of a kind has, besides `name`; one of each group.
_KEYS = {
    "data": ({"path"},),
    "component": ({"command", "jobs"}, {"type"}),
    "environment": ({"image", "conda_file", "build"},),
}


def find_definition(kind: str, address: str, folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the file that defines a registered asset, and its contents; None if there is none.

    Where the address names no version, it is the newest.

    Args:
        kind: `data`, `component` or `environment`.
        address: `azureml:NAME:VERSION`, `azureml:NAME@LABEL`, with or without `azureml:`.
        folder: The pipeline file's folder.
    """
    parts = _ADDRESS.match(address)
    if parts is None:
        return None
    found: list[tuple[str, Path, dict[str, Any]]] = []
    for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
        try:
            data = read_foreign(path, most_mb=1)
        except (OSError, PipelineError):  # other files of the folder may be anything
            continue
        content = _read_once(path, data) if parts[1].encode() in data else None
        if not isinstance(content, dict) or content.get("name") != parts[1]:
            continue
        version = str(content.get("version") or parts[2])
        is_kind = all(keys & content.keys() for keys in _KEYS[kind])
        if is_kind and parts[2] in (None, version):
            found.append((version, path.resolve(), content))
    if not found:
        return None
    # Of the same version, the first one.
    _, path, content = max(found, key=lambda one: _rank_version(one[0]))
    return path, content


def _rank_version(version: str) -> list[tuple[int, str]]:
    """Return what versions are compared by: 10 is newer than 9."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", version)]


@lru_cache(maxsize=64)
def _read_once(path: Path, content: bytes) -> Any:
    """Return the data of a YAML file, for which each step of a pipeline asks; None if it is none.

    Args:
        path: The file.
        content: What it holds: a file that has changed is read again.
    """
    del content
    with suppress(PipelineError):
        return read_yaml(path)
    return None


def name_component(component: Any, step: str) -> str:
    """Return the name of a step's component: that of its file, else that of the step.

    azure-ai-ml forgets the name in the file where a YAML pipeline refers to it.

    Args:
        component: The component.
        step: Name of the step.
    """
    if component.name not in (None, ANONYMOUS):
        return str(component.name)
    data = None
    if source := getattr(component, "_source_path", None):
        with suppress(OSError, PipelineError):
            data = _read_once(Path(source), read_foreign(Path(source), most_mb=1))
    name = data.get("name") if isinstance(data, Mapping) else None
    return name if isinstance(name, str) and name else step
