"""Read the requirements of a component's environment: Python, pip packages, an image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlflow_perf.core.foreign_files import read_foreign
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.azure import load_definition
from mlflow_perf.pipelines.definitions import find_definition
from mlflow_perf.pipelines.graph import EnvironmentSpec
from mlflow_perf.pipelines.sources import Sources
from mlflow_perf.pipelines.yaml_file import read_yaml

_CONDA = re.compile(r"^(?:[\w\-]+::)?([\w.\-]+)\s*(.*)$")
_INLINE = "CliV2AnonymousEnvironment"  # as azure-ai-ml names what a step defines itself
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
    environment: Any, sources: Sources, base: Path, where: str
) -> EnvironmentSpec | None:
    """Return what an environment asks for; None if there is none.

    Args:
        environment: An azure-ai-ml `Environment`, the text that names one, or None.
        sources: Has the files of `--map`, and the environments that the pipeline's own script
            creates.
        base: Folder of the pipeline file; a file in it may define a registered environment.
        where: Name of the step, to begin the message with.

    Raises:
        PipelineError: The conda file cannot be read as one.
    """
    if not environment:
        return None
    name = environment if isinstance(environment, str) else str(environment.image or "")
    if (given := sources.find_stand_in(name)) is not None:
        return _read_requirements(given) if given.suffix == ".txt" else _read_conda(given, where)
    if isinstance(environment, str):
        found = _REGISTERED.match(environment)
        if found and found[1] in sources.environments:
            environment = sources.environments[found[1]]
        elif defined := find_definition("environment", environment, base):
            sources.tell_definition(environment, defined[0])
            environment = load_definition("environment", defined[0])
        else:
            return EnvironmentSpec(environment, image=environment)
    image = str(environment.image or "")
    if environment.conda_file is not None:
        path = getattr(environment, "_conda_file_path", None)
        found_spec = _read_conda(environment.conda_file, where, path=path, name=environment.name)
        return replace(found_spec, image=image)
    build = environment.build
    if build is None:
        return EnvironmentSpec(image, image=image)
    folder = (Path(environment.base_path or ".") / str(build.path)).resolve()
    shown = f"the docker context {folder}"
    if not (folder / "requirements.txt").is_file():
        return EnvironmentSpec(shown, image=shown)
    # Its Dockerfile installs them; that is the part of it which a step of Python needs.
    return replace(_read_requirements(folder / "requirements.txt"), image=shown)


def _read_requirements(file: Path) -> EnvironmentSpec:
    try:
        text = read_foreign(file, most_mb=1).decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise PipelineError(f"{file} is no list of requirements: {reason}.") from error
    lines = map(str.strip, text.splitlines())
    wanted = tuple(line for line in lines if line and not line.startswith("#"))
    return EnvironmentSpec(str(file), requirements=wanted, folder=file.parent)


def _read_conda(
    conda: Any, where: str, *, path: Path | str | None = None, name: str | None = None
) -> EnvironmentSpec:
    """Return what a conda file asks for, given by its path or by its contents."""
    if isinstance(conda, Path):
        path = conda
        try:
            conda = read_yaml(conda)
        except PipelineError as error:
            raise PipelineError(f"{where}: this is no conda file: {error}") from error
    shown = str(path or ("the step's own conda file" if name == _INLINE else name))
    dependencies = conda.get("dependencies") if isinstance(conda, Mapping) else None
    if not isinstance(dependencies, list):
        raise PipelineError(f"{where}: {shown} is no conda file: it has no list of dependencies.")
    entries = list(_read_dependencies(dependencies))
    for text in (text for _, text in entries if not text.isprintable()):
        raise PipelineError(f"{where}: {shown} asks for {text!r}, which is no package.")
    return EnvironmentSpec(
        shown,
        python=next((text for kind, text in entries if kind == "python"), ""),
        requirements=tuple(text for kind, text in entries if kind == "pip"),
        left_out=tuple(text for kind, text in entries if kind == "other"),
        folder=Path(path).parent if path else None,
    )


def _read_dependencies(dependencies: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield each dependency of a conda file as `python`, `pip` or `other`, and its text."""
    for entry in dependencies:
        if isinstance(entry, Mapping):
            lines = entry.get("pip") or []
            lines = lines if isinstance(lines, list) else [lines]
            yield from (("pip", str(line).strip()) for line in lines)
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
            # conda's `=1.2` means any 1.2, and a build string is dropped.
            if found := re.fullmatch(r"(={1,2})([\w.*]+)(?:=[\w.*]+)?", bounds):
                version = found[2].removesuffix(".*")
                is_any = found[1] == "=" and re.fullmatch(r"[\d.]+", version)
                bounds = f"=={version}.*" if is_any else f"=={version}"
            yield "pip", _PIP_NAMES.get(name, name) + bounds
