"""Environments of components: which are made, and which are not needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.environments import (
    StepPython,
    choose_pythons,
    describe_skinny,
    is_satisfied,
    parse_pythons,
)
from mlflow_perf.pipelines.graph import EnvironmentSpec, Graph, Step


def _graph(**wanted: EnvironmentSpec | None) -> Graph:
    steps = {name: Step(name, name, "true", None, wanted=spec) for name, spec in wanted.items()}
    return Graph("p", "p", "p", steps)


@pytest.mark.parametrize(
    ("line", "satisfied"),
    [
        ("pytest>=3", True),
        ("pytest>=3 # the tests", True),
        ("pytest<1", False),
        ("not-there-at-all", False),
        ("azureml-mlflow>=1", True),  # serves the address of a workspace only
        ("numpy; python_version < '3'", True),
        ("git+https://example.org/x", False),
        ("--index-url https://example.org/simple", False),
        ("x; extra == 'gpu'", True),
    ],
)
def test_this_python_suffices_if_it_has_all_packages(line: str, satisfied: bool) -> None:
    """Nothing is made where each requirement is met already."""
    assert is_satisfied(EnvironmentSpec("e", requirements=(line,))) is satisfied


@pytest.mark.parametrize(("version", "is_said"), [(">=3.10", False), ("2.1", True)])
def test_only_a_python_that_is_not_here_is_named(version: str, is_said: bool) -> None:
    """The runner's own interpreter serves where it is of the version that is asked for."""
    graph = _graph(a=EnvironmentSpec("c.yml", requirements=("pytest>=3",), python=version))
    said: list[str] = []
    assert choose_pythons(graph, {}, own=True, say=said.append)["a"] == StepPython()
    assert bool(said) is is_said


def test_images_are_named_and_given_interpreters_come_first(tmp_path: Path) -> None:
    """An image is not used, and that is said once with its steps; --python has the last word."""
    image = EnvironmentSpec("img", image="img")
    packages = EnvironmentSpec("c.yml", requirements=("not-there-at-all",))
    graph = _graph(a=image, b=image, c=packages, d=None)
    said: list[str] = []
    given = parse_pythons([f"c={sys.executable}"], [graph])
    found = choose_pythons(graph, given, own=True, say=said.append, cache=tmp_path)
    hint = " (or give --map img=CONDA.yml)"
    assert said == [f"img is not used: a, b run with this Python{hint}"]
    assert found["c"].path is not None
    assert found["a"] == found["d"] == StepPython()
    assert choose_pythons(graph, {}, own=False, say=said.append)["c"] == StepPython()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "must be STEP=PATH"),
        ("b=/bin/sh", r"no such step \(there is: a\)"),
        ("a=/not/there", "is no interpreter"),
        ("a=/bin/sh", "is no interpreter"),
    ],
)
def test_a_wrong_interpreter_is_refused(text: str, message: str) -> None:
    """A text without a path, an unknown step, a path that is not there, and another program."""
    with pytest.raises(PipelineError, match=message):
        parse_pythons([text], [_graph(a=None)])


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a tiny package that can be installed without an index."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires=[]\nbuild-backend='backend'\nbackend-path=['.']\n"
        "[project]\nname='tiny'\nversion='1.0'\n"
    )
    (folder / "backend.py").write_text(
        "import zipfile\n"
        "def build_wheel(folder, settings=None, metadata=None):\n"
        "    name = 'tiny-1.0-py3-none-any.whl'\n"
        "    with zipfile.ZipFile(f'{folder}/{name}', 'w') as z:\n"
        "        z.writestr('tiny.py', 'answer = 42\\n')\n"
        "        z.writestr('tiny-1.0.dist-info/METADATA',"
        " 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')\n"
        "        z.writestr('tiny-1.0.dist-info/WHEEL',"
        " 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        z.writestr('tiny-1.0.dist-info/RECORD', '')\n"
        "    return name\n"
    )
    return folder


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
def test_an_environment_is_made_once(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packages are those of the file; the second run finds it; a fault is its step's alone."""
    monkeypatch.setenv("UV_OFFLINE", "1")
    good = EnvironmentSpec("good.yml", requirements=(str(package),), left_out=("cudatoolkit",))
    bad = EnvironmentSpec("bad.yml", requirements=("not-there-at-all==1",))
    said: list[str] = []
    for _ in range(2):
        found = choose_pythons(
            _graph(a=good, b=bad, c=good), {}, own=True, say=said.append, cache=tmp_path / "cache"
        )
    python = found["a"].path
    assert python is not None
    assert found["c"].path == python
    done = subprocess.run(
        [str(python), "-c", "import tiny; print(tiny.answer)"], capture_output=True, check=False
    )
    assert done.stdout == b"42\n", done.stderr
    assert [line for line in said if line.startswith("making the environment of good.yml")] == [
        "making the environment of good.yml: 1 package"
    ]
    assert found["b"].path is None
    assert found["b"].fault.startswith("its environment (bad.yml) cannot be made: ")
    assert "not-there-at-all" in found["b"].fault
    assert any("conda package cudatoolkit is left out" in line for line in said)


def test_an_mlflow_that_can_write_to_no_database_is_told(tmp_path: Path) -> None:
    """azureml-mlflow alone brings mlflow-skinny; with mlflow, or SQLAlchemy, it can."""
    pythons = {"own": StepPython()}
    for name, packages in {
        "bare": ["numpy"],
        "skinny": ["mlflow_skinny-3.1.0.dist-info"],
        "whole": ["mlflow_skinny-3.1.0.dist-info", "mlflow-3.1.0.dist-info", "sqlalchemy"],
    }.items():
        pythons[name] = StepPython(tmp_path / name / "bin" / "python")
        for package in packages:
            (tmp_path / name / "lib/python3.11/site-packages" / package).mkdir(parents=True)
    assert describe_skinny(pythons).startswith("the environment of skinny has mlflow-skinny alone")
    assert describe_skinny({"own": StepPython()}) == ""


@pytest.mark.parametrize("version", ["--system", "/bin/sh", "3.9;reboot", "./evil", "3.9 -v"])
def test_a_version_that_is_none_is_not_handed_to_uv(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    """A foreign file's text is neither an option nor a program that uv would start."""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a program was started"))
    said: list[str] = []
    spec = EnvironmentSpec("conda.yml", python=version, requirements=("pytest",))
    found = choose_pythons(_graph(a=spec), {}, own=True, say=said.append, cache=tmp_path)
    assert found == {"a": StepPython()}
    assert said == [f"conda.yml asks for Python {version}, which is not here: this one is used"]
