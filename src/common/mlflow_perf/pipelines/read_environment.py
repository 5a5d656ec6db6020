"""Read what a component's environment asks for: Python, pip requirements, an image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import EnvironmentSpec

_CONDA = re.compile(r"^(?:[\w\-]+::)?([\w.\-]+)\s*(.*)$")
_REGISTERED = re.compile(r"^(?:azureml:)?([\w.\-]+)(?:[@:][\w.\-]+)?$")
# Conda packages of another name at PyPI, and those that pip does not have: not Python's own.
_PIP_NAMES = {
    "dask-core": "dask",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "opencv": "opencv-python",
    "py-xgboost": "xgboost",
    "pytables": "tables",
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "tensorflow-gpu": "tensorflow",
}
_NOT_PYTHON = re.compile(
    r"(r|r-.*|_.*|blas|cuda.*|cudnn|gcc.*|gxx.*|git|julia|lib.*|mkl|mpich|nccl|nodejs|openjdk|"
    r"openmpi|openssl|pytorch-cuda|rust|spark|.*-devel|.*_linux-64)"
)


def read_environment(
    environment: Any, made: Mapping[str, Any], where: str
) -> EnvironmentSpec | None:
    """Return what an environment asks for; None if there is none.

    Args:
        environment: An azure-ai-ml `Environment`, the text that names one, or None.
        made: Environment by name of those that the pipeline's own script creates.
        where: Name of the step, to begin the message with.

    Raises:
        PipelineError: The conda file cannot be read as one.
    """
    if isinstance(environment, str):
        found = _REGISTERED.match(environment)
        name = found[1] if found else ""
        if name not in made:
            return EnvironmentSpec(environment, image=environment)
        environment = made[name]
    if not environment:
        return None
    image = str(getattr(environment, "image", None) or "")
    build = getattr(environment, "build", None)
    conda = environment.conda_file
    if conda is None and build is not None:
        base = Path(environment.base_path or ".")
        folder = (base / str(build.path)).resolve()
        listed = folder / "requirements.txt"
        shown = f"the docker context {folder}"
        if not listed.is_file():
            return EnvironmentSpec(shown, image=shown)
        # Its Dockerfile installs them; that is the part of it which a step of Python needs.
        lines = (line.strip() for line in listed.read_text(encoding="utf-8").splitlines())
        wanted = tuple(line for line in lines if line and not line.startswith("#"))
        return EnvironmentSpec(str(listed), requirements=wanted, image=shown, folder=folder)
    if conda is None:
        return EnvironmentSpec(image, image=image)
    path = getattr(environment, "_conda_file_path", None)
    shown = str(path or f"the environment {environment.name}")
    dependencies = conda.get("dependencies") if isinstance(conda, Mapping) else None
    if not isinstance(dependencies, list):
        raise PipelineError(f"{where}: {shown} is no conda file: it has no list of dependencies.")
    entries = list(_read_dependencies(dependencies))
    return EnvironmentSpec(
        shown,
        python=next((text for kind, text in entries if kind == "python"), ""),
        requirements=tuple(text for kind, text in entries if kind == "pip"),
        left_out=tuple(text for kind, text in entries if kind == "other"),
        image=image,
        folder=Path(path).parent if path else None,
    )


def _read_dependencies(dependencies: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield each dependency of a conda file as `python`, `pip` or `other`, and its text."""
    for entry in dependencies:
        if isinstance(entry, Mapping):
            yield from (("pip", str(line).strip()) for line in entry.get("pip") or [])
            continue
        parts = _CONDA.match(str(entry).strip())
        if parts is None:
            yield "other", str(entry)
            continue
        name, bounds = parts[1].lower(), parts[2].replace(" ", "")
        if name == "python":
            exact = re.fullmatch(r"={1,2}(\d+\.\d+)\S*", bounds)
            yield "python", exact[1] if exact else bounds
        elif name in ("pip", "setuptools", "wheel"):
            continue
        elif _NOT_PYTHON.fullmatch(name) and name not in _PIP_NAMES:
            yield "other", str(entry)
        else:
            yield "pip", _PIP_NAMES.get(name, name) + _translate_bounds(bounds)


def _translate_bounds(bounds: str) -> str:
    """Return conda's bounds as pip's: `=1.2` means any 1.2, and a build string is dropped."""
    found = re.fullmatch(r"(={1,2})([\w.*]+)(?:=[\w.*]+)?", bounds)
    if found is None:
        return bounds
    version = found[2].removesuffix(".*")
    is_any = found[1] == "=" and re.fullmatch(r"[\d.]+", version)
    return f"=={version}.*" if is_any else f"=={version}"
