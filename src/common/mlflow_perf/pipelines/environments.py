"""Make the Python environments that components ask for, with uv; each is made once and kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from mlflow_perf.core.format import format_count
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import EnvironmentSpec, Graph
from mlflow_perf.pipelines.sources import find_cache_folder
from mlflow_perf.pipelines.values import suggest_name

_LIMIT_SEC = 1800.0
_MAX_AT_ONCE = 4
_FIND_SEC = 60.0
# Serves the address of a workspace only, which no step has here.
_ONLY_ON_AZURE = ("azureml-mlflow",)


@dataclass(frozen=True)
class StepPython:
    """The interpreter of a step.

    Attributes:
        path: The interpreter; None for the runner's own.
        fault: Why the step's environment cannot be made; empty if it was.
    """

    path: Path | None = None
    fault: str = ""


def parse_pythons(texts: Sequence[str], graphs: Sequence[Graph]) -> dict[str, Path]:
    """Return the interpreters of `STEP=PATH` texts, by step.

    Raises:
        PipelineError: A text has no `=`, a step does not exist, or a path is no interpreter.
    """
    known = {name for graph in graphs for name in graph.steps}
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            raise PipelineError(f"--python {text!r} must be STEP=PATH.")
        if name not in known:
            hint = suggest_name(name, sorted(known))
            raise PipelineError(f"--python {name}: there is no such step{hint}.")
        python = Path(path).expanduser()
        python = python / "bin" / "python" if python.is_dir() else python
        if not _is_interpreter(python):
            raise PipelineError(f"--python {name}: {path} is no interpreter and no environment.")
        found[name] = Path(os.path.abspath(python))  # noqa: PTH100 - a link is the environment
    return found


def _is_interpreter(path: Path) -> bool:
    try:
        done = subprocess.run(
            [path, "-c", "import sys"], capture_output=True, timeout=_FIND_SEC, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def choose_pythons(
    graph: Graph,
    given: Mapping[str, Path],
    *,
    own: bool,
    say: Callable[[str], object],
    cache: Path | None = None,
) -> dict[str, StepPython]:
    """Return the interpreter of each step; environments that do not exist yet are made at once.

    Args:
        graph: The pipeline.
        given: Interpreter by step, from `--python`.
        own: Whether to make the components' environments; else all steps use the runner's own.
        say: Prints a line for the user.
        cache: Folder of the environments.
    """
    chosen = {name: StepPython(path) for name, path in given.items() if name in graph.steps}
    wanted: dict[EnvironmentSpec, list[str]] = {}
    for step in graph.steps.values():
        if step.wanted is not None and step.name not in chosen and own:
            wanted.setdefault(step.wanted, []).append(step.name)
    to_make: list[tuple[EnvironmentSpec, Path]] = []
    for spec, names in wanted.items():
        if not spec.requirements:
            if spec.image:
                hint = "" if " " in spec.image else f" (or give --map {spec.image}=CONDA.yml)"
                say(f"{spec.image} is not used: {', '.join(names)} run with this Python{hint}")
            continue
        python = _find_python(spec.python)
        if python is None and not _is_own_version(spec.python):
            say(f"{spec.name} asks for Python {spec.python}, which is not here: this one is used")
        if not (python is None and is_satisfied(spec)):
            to_make.append((spec, python or Path(sys.executable)))
    folder = (cache or find_cache_folder()) / "environments"
    with ThreadPoolExecutor(_MAX_AT_ONCE, thread_name_prefix="environment") as pool:
        made = pool.map(lambda one: _make_once(one[0], one[1], folder, say), to_make)
        for (spec, _), result in zip(to_make, made, strict=True):
            chosen |= dict.fromkeys(wanted[spec], result)
    return {name: chosen.get(name, StepPython()) for name in graph.steps}


def describe_skinny(pythons: Mapping[str, StepPython]) -> str:
    """Say which steps have mlflow-skinny alone, which can write to no database; empty if none has.

    Args:
        pythons: Interpreter by step.
    """
    found = []
    for name, python in pythons.items():
        lib = Path() if python.path is None else python.path.parent.parent / "lib"
        is_skinny = any(lib.glob("python*/site-packages/mlflow_skinny-*"))
        if is_skinny and not any(lib.glob("python*/site-packages/sqlalchemy")):
            found.append(name)
    if not found:
        return ""
    return (
        f"the environment of {', '.join(found)} has mlflow-skinny alone: what a script logs there "
        "fails without a server. Add mlflow to its packages, or start one (mlflow server) and set "
        "MLFLOW_TRACKING_URI to its address"
    )


def is_satisfied(spec: EnvironmentSpec) -> bool:
    """Return whether this Python has all packages of an environment, in their versions."""
    from packaging.requirements import InvalidRequirement, Requirement

    for line in spec.requirements:
        try:
            wanted = Requirement(line.partition(" #")[0])
        except InvalidRequirement:  # an option, a path or an address
            return False
        if wanted.name.lower() in _ONLY_ON_AZURE or (
            wanted.marker and not wanted.marker.evaluate()
        ):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            return False
        if wanted.url or not wanted.specifier.contains(version, prereleases=True):
            return False
    return True


def _is_own_version(version: str) -> bool:
    """Return whether the runner's interpreter is of a version, such as `3.11` or `>=3.10`."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not version or version == own:
        return True
    if re.fullmatch(r"[\d.]+", version) is not None:
        return False
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(version).contains(".".join(map(str, sys.version_info[:3])))
    except InvalidSpecifier:
        return False


@lru_cache(maxsize=16)
def _find_python(version: str) -> Path | None:
    """Return another interpreter of a version; None if the runner's is meant, or none is here."""
    # A file of somebody else's may hold an option of uv's, or the path of a program.
    if _is_own_version(version) or re.fullmatch(r"[\d.<>=!~*,]+", version) is None:
        return None
    try:
        found = subprocess.run(
            [_find_uv(), "python", "find", "--no-python-downloads", version],
            capture_output=True, text=True, timeout=_FIND_SEC, check=False,
        )  # fmt: skip
    except (OSError, PipelineError, subprocess.TimeoutExpired):
        return None
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def _find_uv() -> str:
    """Return the path of uv.

    Raises:
        PipelineError: It is not installed.
    """
    beside = shutil.which("uv", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("uv")
    if found is None:
        raise PipelineError("uv is not installed (pip install uv)")
    return found


def _make_once(
    spec: EnvironmentSpec, python: Path, cache: Path, say: Callable[[str], object]
) -> StepPython:
    """Return the interpreter of an environment, which is made if no run has made it before."""
    # A list of requirements may name another file.
    parts = [str(python), sys.version, *spec.requirements, str(spec.folder)]
    for line in spec.requirements:
        file = (spec.folder or Path()) / line.partition(" ")[2].strip()
        if line.startswith(("-r ", "-c ")) and file.is_file():
            parts.append(file.read_text(encoding="utf-8"))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = cache / key
    found = folder / "bin" / "python"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # One process at a time makes an environment.
        with (cache / f"{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / ".made").exists():
                packages = format_count(len(spec.requirements), "package")
                say(f"making the environment of {spec.name}: {packages}")
                began = time.monotonic()
                _make(spec, python, folder)
                (folder / ".made").touch()
                say(f"made the environment of {spec.name} in {time.monotonic() - began:.0f} s")
    except (PipelineError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        fault = f"its environment ({spec.name}) cannot be made: {error}"
        say(f"{fault} (--environments here uses this Python instead)")
        return StepPython(fault=fault)
    for name in spec.left_out:
        say(f"{spec.name}: the conda package {name} is left out, because pip does not have it")
    return StepPython(found)


def _make(spec: EnvironmentSpec, python: Path, folder: Path) -> None:
    """Make an environment with all its packages.

    Raises:
        PipelineError: It cannot be made; the message says which package and why.
    """
    uv = _find_uv()
    shutil.rmtree(folder, ignore_errors=True)
    _run([uv, "venv", "--quiet", "--python", str(python), str(folder)], Path())
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(spec.requirements) + "\n", encoding="utf-8")
    into = folder / "bin" / "python"
    command = [uv, "pip", "install", "--quiet", "--python", str(into), "-r", str(listed)]
    base = spec.folder or Path()
    try:
        # A package that has to be compiled takes minutes, and mostly fails in the end.
        _run([*command, "--no-build"], base)
    except PipelineError as error:
        if "wheel" not in str(error) and "build" not in str(error).lower():
            raise
        asked = spec.python and not str(spec.python).startswith((">", "<", "~", "!"))
        own = f"{sys.version_info.major}.{sys.version_info.minor}"
        if asked and spec.python != own and python == Path(sys.executable):
            raise PipelineError(
                f"{error} It asks for Python {spec.python}, and here is {own}."
            ) from error
        _run(command, base)
    # Some commands begin with `pip install`.
    with suppress(PipelineError):
        _run([uv, "pip", "install", "--quiet", "--python", str(into), "pip"], base)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_SEC, check=False,
            env={**os.environ, "NO_COLOR": "1"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise PipelineError(f"uv took longer than {_LIMIT_SEC:.0f} s") from error
    if done.returncode:
        # uv draws its reasons as a tree over several lines.
        text = re.sub(r"[×╰─▶├│]+|^error: ", " ", done.stderr, flags=re.MULTILINE)
        raise PipelineError(" ".join(text.split())[:600])
