"""What a component's environment asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.ai.ml.entities import BuildContext, Environment

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import EnvironmentSpec
from mlflow_perf.pipelines.read_environment import read_environment


def test_a_conda_file_becomes_pip_requirements(tmp_path: Path) -> None:
    """Bounds are translated, names mapped, and what pip does not have is named."""
    path = tmp_path / "conda.yml"
    path.write_text(
        "dependencies:\n- python=3.8.5\n- pip=20\n- numpy=1.21\n- conda-forge::scipy>=1.5\n"
        "- pytorch==1.9.0=py38_cuda\n- cudatoolkit=11\n- r-base\n- pip:\n  - mlflow~=2.0 \n"
    )
    found = read_environment(Environment(conda_file=str(path), image="i"), {}, "Step 'a'")
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
    found = read_environment(build, {}, "x")
    assert found is not None
    assert found.requirements == ("numpy",)
    alone = read_environment("azureml:curated@latest", {}, "x")
    assert alone == EnvironmentSpec("azureml:curated@latest", image="azureml:curated@latest")
    assert read_environment("azureml:mine:1", {"mine": build}, "x") == found
    assert read_environment(None, {}, "x") is None


def test_a_file_that_is_no_conda_file_is_named() -> None:
    """The message names the step and what is missing."""
    bad: Any = Environment(name="e", conda_file={"packages": []})
    with pytest.raises(PipelineError, match="Step 'a': the environment e is no conda file"):
        read_environment(bad, {}, "Step 'a'")
