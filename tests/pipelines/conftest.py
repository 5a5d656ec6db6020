"""Small real components and pipelines, written into a test's own folder."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("azure.ai.ml")

SPEC = """\
name: {name}
version: 0.1.0
type: command
inputs:
  rows: {{type: integer, default: 5, min: 1, max: 100}}
  kind: {{type: string, default: a, enum: [a, b]}}
  rate: {{type: number, optional: true, max: 1}}
  fast: {{type: boolean, default: false}}
  folder: {{type: uri_folder, optional: true}}
  file: {{type: uri_file, optional: true}}
outputs:
  out: {{type: uri_folder}}
  one: {{type: uri_file}}
code: .
environment: azureml:some:1
environment_variables: {{FROM: component, BOTH: component}}
command: >-
  {command}
"""
COMMAND = (
    "python script.py --rows ${{inputs.rows}} --kind ${{inputs.kind}} --fast ${{inputs.fast}} "
    "$[[--rate ${{inputs.rate}}]] $[[--folder ${{inputs.folder}}]] $[[--file ${{inputs.file}}]] "
    "--out ${{outputs.out}} --one ${{outputs.one}}"
)
HEAD = """\
from pathlib import Path
from azure.ai.ml import (
    Input, MpiDistribution, PyTorchDistribution, RayDistribution, TensorFlowDistribution, dsl,
    load_component,
)
HERE = Path(__file__).parent
make = load_component(str(HERE / "make" / "component.yaml"))
"""

# The autouse fixtures take our variables out of each test's environment: so it is read here.
_LAUNCHERS = os.environ.get("LAUNCHERS_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def torch_python() -> str:
    """The interpreter of an environment that has torch: `make test-launchers` makes one."""
    has = subprocess.run([_LAUNCHERS, "-c", "import torch"], capture_output=True, check=False)
    if has.returncode:
        pytest.skip("needs torch, in an environment of its own: make test-launchers")
    return _LAUNCHERS


WriteComponent = Callable[..., Path]
WritePipeline = Callable[[str], Path]


@pytest.fixture(scope="session")
def write_files() -> Callable[[Path, str, str], Path]:
    """Return what writes the component `make` and a pipeline file over it, and returns the file."""

    def write(folder: Path, script: str, body: str) -> Path:
        (folder / "make").mkdir(parents=True, exist_ok=True)
        spec = SPEC.format(name="make", command=COMMAND)
        (folder / "make" / "component.yaml").write_text(spec)
        (folder / "make" / "script.py").write_text(textwrap.dedent(script))
        path = folder / "pipe.py"
        path.write_text(HEAD + textwrap.dedent(body))
        return path

    return write


@pytest.fixture
def write_component(tmp_path: Path) -> WriteComponent:
    """Return what writes a component into `tmp_path/<name>` and returns its folder."""

    def write(
        name: str = "make", *, script: str = "", command: str = COMMAND, extra: str = ""
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        spec = SPEC.format(name=name, command=command) + textwrap.dedent(extra)
        (folder / "component.yaml").write_text(spec)
        (folder / "script.py").write_text(textwrap.dedent(script))
        return folder

    return write


@pytest.fixture
def write_pipeline(tmp_path: Path, write_component: WriteComponent) -> WritePipeline:
    """Return what writes a pipeline file over the component `make` and returns its path."""

    def write(body: str) -> Path:
        if not (tmp_path / "make").exists():
            write_component()
        path = tmp_path / "pipe.py"
        path.write_text(HEAD + textwrap.dedent(body))
        return path

    return write


@pytest.fixture
def graph_of(write_pipeline: WritePipeline) -> Callable[..., Any]:
    """Return what writes a pipeline, sets values and returns its graph."""
    from mlflow_perf.pipelines.loading import load_job
    from mlflow_perf.pipelines.read_graph import read_graph

    def read(body: str, **settings: str) -> Any:
        path = write_pipeline(body)
        job, found = load_job(str(path), settings)
        return read_graph(job, source=found.resolve())

    return read
