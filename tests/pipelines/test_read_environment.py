"""What a component's environment asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.ai.ml.entities import BuildContext, Environment

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import EnvironmentSpec
from mlflow_perf.pipelines.read_environment import read_environment
from mlflow_perf.pipelines.sources import Sources


def test_a_conda_file_becomes_pip_requirements(tmp_path: Path) -> None:
    """Bounds are translated, names mapped, and what pip does not have is named."""
    path = tmp_path / "conda.yml"
    path.write_text(
        "dependencies:\n- python=3.8.5\n- pip=20\n- numpy=1.21\n- conda-forge::scipy>=1.5\n"
        "- pytorch==1.9.0=py38_cuda\n- cudatoolkit=11\n- r-base\n- pip:\n  - mlflow~=2.0 \n"
    )
    asked = Environment(conda_file=str(path), image="i")
    found = read_environment(asked, Sources(), tmp_path, "Step 'a'")
    assert found == EnvironmentSpec(
        str(path),
        python="3.8",
        requirements=("numpy==1.21.*", "scipy>=1.5", "torch==1.9.0", "mlflow~=2.0"),
        left_out=("cudatoolkit=11", "r-base"),
        image="i",
        folder=tmp_path,
    )


def test_a_docker_context_gives_its_requirements(tmp_path: Path) -> None:
    """Of a Dockerfile's folder, the pip requirements are used; an image is only named."""
    (tmp_path / "requirements.txt").write_text("# ours\nnumpy\n\n")
    build = Environment(name="e", build=BuildContext(path=str(tmp_path)))
    found = read_environment(build, Sources(), tmp_path, "x")
    assert found is not None
    assert found.requirements == ("numpy",)
    alone = read_environment("azureml:curated@latest", Sources(), tmp_path, "x")
    assert alone == EnvironmentSpec("azureml:curated@latest", image="azureml:curated@latest")
    made = Sources(environments={"mine": build})
    assert read_environment("azureml:mine:1", made, tmp_path, "x") == found
    assert read_environment(None, Sources(), tmp_path, "x") is None


def test_a_registered_environment_is_read_from_its_own_file(tmp_path: Path) -> None:
    """The file that defines it in the pipeline's folder is used, or the file that `--map` names."""
    said: list[str] = []
    conda = tmp_path / "conda.yml"
    conda.write_text("dependencies:\n- pip:\n  - numpy\n")
    (tmp_path / "env.yml").write_text("name: mine\nimage: img\nconda_file: conda.yml\n")
    sources = Sources(say=said.append)
    found = read_environment("azureml:mine@latest", sources, tmp_path, "x")
    assert found is not None
    assert (found.requirements, found.image) == (("numpy",), "img")
    assert said == [f"azureml:mine@latest is taken from {tmp_path / 'env.yml'}"]
    listed = tmp_path / "packages.txt"
    listed.write_text("scipy\n")
    for asked, file, wanted in (("azureml:curated@x", conda, "numpy"), ("img", listed, "scipy")):
        given: Any = Environment(image="img") if asked == "img" else asked
        spec = read_environment(given, Sources({asked: file}), tmp_path, "x")
        assert spec is not None
        assert spec.requirements == (wanted,)


def test_a_file_that_is_no_conda_file_is_named() -> None:
    """The message names the step and what is missing."""
    bad: Any = Environment(name="e", conda_file={"packages": []})
    with pytest.raises(PipelineError, match="Step 'a': e is no conda file"):
        read_environment(bad, Sources(), Path(), "Step 'a'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"dependencies: [{pip: 5}]", None),
        (b'dependencies: ["\\ud800"]', "is no package"),
        (b'dependencies: [{pip: ["a\\n--index-url https://host"]}]', "is no package"),
        (b"[" * 1500, "no conda file"),
        (b"\xff", "no conda file"),
        (b"a: 2026-13-45", "no conda file"),
    ],
)
def test_an_odd_conda_file_is_one_line(tmp_path: Path, text: bytes, message: str | None) -> None:
    """A damaged or hostile file is an error of ours, or asks for what uv will refuse."""
    (tmp_path / "conda.yml").write_bytes(text)
    sources = Sources({"asked": tmp_path / "conda.yml"})
    if message is None:
        found = read_environment("asked", sources, tmp_path, "Step 'a'")
        assert found is not None
        assert found.requirements == ("5",)
        return
    with pytest.raises(PipelineError, match=message) as failed:
        read_environment("asked", sources, tmp_path, "Step 'a'")
    assert "\n" not in str(failed.value)


def test_requirements_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    """Neither are those of a docker context."""
    (tmp_path / "requirements.txt").write_bytes(b"numpy\xff")
    sources = Sources({"asked": tmp_path / "requirements.txt"})
    with pytest.raises(PipelineError, match="no list of requirements"):
        read_environment("asked", sources, tmp_path, "Step 'a'")


@pytest.mark.parametrize("address", ["azureml:curated@latest", "curated@latest", "azureml:curated"])
def test_a_stand_in_of_an_environment_has_each_of_its_addresses(
    address: str, tmp_path: Path
) -> None:
    """A YAML pipeline names it without `azureml:`, a script with it."""
    file = tmp_path / "requirements.txt"
    file.write_text("numpy\n")
    for named in ("azureml:curated@latest", "curated@latest"):
        found = read_environment(named, Sources({address: file}), tmp_path, "x")
        assert found is not None
        assert found.requirements == ("numpy",)
