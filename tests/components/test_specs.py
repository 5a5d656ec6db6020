"""Each component's spec against its script, offline: arguments, inputs, outputs, snapshot."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("azure.ai.ml")
pytest.importorskip("lightgbm")

from azure.ai.ml import load_component

from mlflow_perf.pipelines.read_graph import read_ports
from mlflow_perf.pipelines.snapshot import copy_code
from mlflow_perf.pipelines.values import fill_command, format_literal

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted((ROOT / "components").glob("*/component.yaml"))
OURS = [s for s in SPECS if s.parent.name != "kv_transfer"]
_PLACE = re.compile(r"\$\{\{(inputs|outputs)\.(\w+)\}\}")


@pytest.fixture(params=OURS, ids=lambda p: p.parent.name)
def component(request: pytest.FixtureRequest) -> Any:
    """Each component in turn."""
    return load_component(str(request.param))


@pytest.fixture
def snapshot(component: Any, tmp_path: Path) -> Path:
    """The folder that Azure ML would run the component in."""
    base = Path(component.base_path)
    includes = tuple((base / i).resolve() for i in component.additional_includes)
    copy_code(base, includes, tmp_path / "snapshot")
    return tmp_path / "snapshot"


@pytest.fixture
def parser(component: Any, snapshot: Path) -> Iterator[argparse.ArgumentParser]:
    """What the component's script takes."""
    script = shlex.split(component.command)[1]
    before = set(sys.modules)
    sys.path.insert(0, str(snapshot))
    try:
        spec = importlib.util.spec_from_file_location("script", snapshot / script)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module.arguments()
    finally:
        sys.path.remove(str(snapshot))
        for name in set(sys.modules) - before:
            if name in ("arguments", "machines"):
                del sys.modules[name]


def test_every_input_and_output_is_used(component: Any) -> None:
    """The command names all that the spec declares, and nothing else."""
    used = {(kind, name) for kind, name in _PLACE.findall(component.command)}
    declared = {("inputs", n) for n in component.inputs} | {
        ("outputs", n) for n in component.outputs
    }
    assert used == declared


def test_optional_inputs_stand_in_brackets(component: Any) -> None:
    """An optional input may be left out, so its argument has to be able to go."""
    bracketed = set(re.findall(r"inputs\.(\w+)", " ".join(_brackets(component.command))))
    optional = {n for n, p in read_ports(component.inputs).items() if p.optional}
    assert bracketed == optional


def _brackets(command: str) -> list[str]:
    return re.findall(r"\$\[\[(.*?)\]\]", command, re.DOTALL)


@pytest.mark.parametrize("given", ["all", "required"])
def test_the_script_takes_what_the_command_gives(
    component: Any, parser: argparse.ArgumentParser, given: str
) -> None:
    """The command with its defaults parses, and gives every argument that is required."""
    inputs: dict[str, str | None] = {}
    for name, port in read_ports(component.inputs).items():
        value = port.default if port.default is not None else _sample(name, port.type)
        inputs[name] = None if port.optional and given == "required" else format_literal(value)
    outputs = {name: f"/out/{name}" for name in component.outputs}
    words = shlex.split(fill_command(component.command, inputs=inputs, outputs=outputs))
    args = parser.parse_args(words[2:])
    flags = {word for word in words if word.startswith("--")}
    known = {flag for action in parser._actions for flag in action.option_strings}
    assert flags <= known
    optional = set(re.findall(r"(--[\w-]+)", " ".join(_brackets(component.command))))
    assert known - flags - {"-h", "--help"} <= (optional if given != "all" else set())
    assert vars(args)


def _sample(name: str, kind: str) -> str:
    if name == "custom_properties":
        return '{"team": "demo"}'
    return "1" if kind in ("integer", "number") else "/in"


def test_the_spec_says_what_it_is(component: Any) -> None:
    """A component has a description, a version and an environment that installs MLflow."""
    assert component.description
    assert re.fullmatch(r"\d+\.\d+\.\d+", component.version)
    packages = str(component.environment.conda_file)
    assert "mlflow" in packages
    assert "psutil" in packages


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.parent.name)
def test_azure_ml_accepts_it(spec: Path, offline_client: Any) -> None:
    """azure-ai-ml's public validation finds nothing to object to in a component."""
    result = offline_client.components.validate(load_component(str(spec)))
    assert result.passed, result.error_messages


@pytest.mark.e2e
def test_the_snapshot_runs_by_itself(snapshot: Path, component: Any, tmp_path: Path) -> None:
    """In an empty folder, with nothing of the repository on the path, the script starts."""
    script = shlex.split(component.command)[1]
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MLFLOW_RUN_ID")}
    check = "import mlflow_perf, sys; print(mlflow_perf.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", check], cwd=snapshot, env=environ,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert where.stdout.strip().startswith(str(snapshot))
    done = subprocess.run(
        [sys.executable, script, "--help"], cwd=snapshot, env=environ,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout
