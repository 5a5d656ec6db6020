"""Registered assets that a file in the pipeline's own folder defines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.pipelines import definitions
from mlflow_perf.pipelines.definitions import find_definition
from mlflow_perf.pipelines.loading import load_job
from mlflow_perf.pipelines.read_graph import read_graph
from mlflow_perf.pipelines.sources import Sources
from mlflow_perf.pipelines.yaml_file import read_yaml

_PIPELINE = """\
type: pipeline
jobs:
  a:
    type: command
    component: azureml:mine@latest
    inputs: {raw: {type: uri_folder, path: "azureml:raw@latest"}}
"""
_COMPONENT = """\
type: command
name: mine
version: 3
inputs: {raw: {type: uri_folder}}
outputs: {out: {type: uri_folder}}
command: cp -r ${{inputs.raw}} ${{outputs.out}}
environment: azureml:some@latest
"""


def test_files_beside_the_pipeline_serve_for_what_is_registered(tmp_path: Path) -> None:
    """A component and a data asset are taken from their files, and each is said once."""
    said: list[str] = []
    (tmp_path / "data").mkdir()
    (tmp_path / "data.yml").write_text("name: raw\ntype: uri_folder\npath: ./data\n")
    (tmp_path / "mine.yml").write_text(_COMPONENT)
    (tmp_path / "other.yml").write_text("name: [unclosed mine raw")
    pipe = tmp_path / "pipeline.yml"
    pipe.write_text(_PIPELINE)
    sources = Sources(say=said.append)
    job, path = load_job(str(pipe), {})
    graph = read_graph(job, source=path.resolve(), sources=sources)
    assert graph.steps["a"].values == {"raw": tmp_path / "data"}
    assert graph.steps["a"].component == "mine"
    assert [line.partition(" is taken from ")[2] for line in said] == [
        str(tmp_path / "mine.yml"),
        str(tmp_path / "data.yml"),
    ]


@pytest.mark.parametrize(
    ("kind", "address", "found"),
    [
        ("component", "azureml:mine@latest", True),
        ("component", "mine:3", True),
        ("component", "azureml:mine:2", False),
        ("component", "azureml:yours@latest", False),
        ("component", "azureml://registries/r/components/mine/versions/3", False),
        ("data", "azureml:mine@latest", False),
        ("environment", "azureml:mine@latest", False),
    ],
)
def test_only_the_right_kind_and_version_serves(
    tmp_path: Path, kind: str, address: str, found: bool
) -> None:
    """A file of another kind, name, version or registry is not taken."""
    (tmp_path / "mine.yml").write_text(_COMPONENT)
    assert (find_definition(kind, address, tmp_path) is not None) == found


def test_a_step_has_the_component_that_its_file_names(tmp_path: Path) -> None:
    """Several steps of one component have one past; azure-ai-ml forgets its name."""
    inputs = "inputs: {raw: {type: uri_folder}}\n"
    unnamed = _COMPONENT.replace("name: mine\nversion: 3\n", "")
    (tmp_path / "mine.yml").write_text(_COMPONENT)
    (tmp_path / "unnamed.yml").write_text(unnamed)
    assert inputs in unnamed
    given = "inputs: {raw: {type: uri_folder, path: .}}"
    (tmp_path / "pipeline.yml").write_text(
        "type: pipeline\njobs:\n"
        f"  a: {{component: ./mine.yml, {given}}}\n"
        f"  b: {{component: ./mine.yml, {given}}}\n"
        f"  c: {{component: ./unnamed.yml, {given}}}\n"
        "  d: {command: echo, environment: 'azureml:e@latest'}\n"
    )
    job, path = load_job(str(tmp_path / "pipeline.yml"), {})
    steps = read_graph(job, source=path).steps
    named = {name: step.component for name, step in steps.items()}
    assert named == {"a": "mine", "b": "mine", "c": "c", "d": "d"}


def test_hundreds_of_steps_read_a_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is read again only once it has changed, and one that is no YAML is none each time."""
    read: list[str] = []

    def note(path: Path) -> Any:
        read.append(path.name)
        return read_yaml(path)

    monkeypatch.setattr(definitions, "read_yaml", note)
    (tmp_path / "mine.yml").write_text(_COMPONENT)
    (tmp_path / "other.yml").write_text("name: [unclosed mine")
    for _ in range(3):
        assert find_definition("component", "azureml:mine@latest", tmp_path) is not None
        assert find_definition("component", "azureml:mine:2", tmp_path) is None
    assert sorted(read) == ["mine.yml", "other.yml"]
    (tmp_path / "mine.yml").write_text(_COMPONENT.replace("version: 3", "version: 2"))
    assert find_definition("component", "azureml:mine:2", tmp_path) is not None


def test_a_label_stands_for_the_newest_version(tmp_path: Path) -> None:
    """The first file by its name would be an old one."""
    for version in ("2", "10", "1", "9.12", "v3"):
        text = _COMPONENT.replace("version: 3", f"version: '{version}'")
        (tmp_path / f"mine-{version}.yml").write_text(text)

    def find(address: str) -> str:
        found = find_definition("component", address, tmp_path)
        return "" if found is None else found[0].name

    assert find("azureml:mine@latest") == find("mine") == "mine-10.yml"
    assert find("azureml:mine:2") == "mine-2.yml"
    assert find("azureml:mine:7") == ""
