"""Copy a component's code for a step: exactly the files that Azure ML would upload.

As in azure-ai-ml, `.amlignore` (or `.gitignore`) of the code's folder is obeyed, and
`additional_includes` keep their names at the root of the copy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_perf.core.extras import needing
from mlflow_perf.errors import PipelineError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_IGNORE_FILES = (".amlignore", ".gitignore")
_ALWAYS = ("__pycache__/", "/pipeline-runs/")  # the second is where the runner puts its own files


def copy_code(code: Path | None, includes: tuple[Path, ...], target: Path) -> None:
    """Copy a component's code and its includes into `target`.

    Args:
        code: Folder or file of the code; None for a command that needs none.
        includes: Files and folders to copy beside it.
        target: Folder to make.

    Raises:
        PipelineError: Two of them have the same name, or a file cannot be read.
    """
    target.mkdir(parents=True, exist_ok=True)
    seen: dict[str, Path] = {}
    for source, name in list(list_files(code, includes)):  # before the first copy is made
        if name in seen:
            raise PipelineError(f"Both {seen[name]} and {source} would be {name} of the snapshot.")
        seen[name] = source
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not source.is_file():
            raise PipelineError(f"The code {source} is no file, and cannot be copied.")
        try:
            shutil.copy2(source, place)
        except OSError as error:
            raise PipelineError(f"The code {source} cannot be copied: {error}.") from error


def list_files(code: Path | None, includes: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    """Yield each file of the snapshot with its relative POSIX path there."""
    outer = None
    if code is not None and code.is_dir():
        outer = _read_rules(code)
        yield from _walk(code, "", [outer])
    elif code is not None:
        yield code, code.name
    for include in includes:
        if include.is_dir():
            rules = [_read_rules(include)] + ([outer] if outer else [])
            yield from _walk(include, include.name + "/", rules)
        else:
            yield include, include.name


def _walk(root: Path, prefix: str, rules: list[GitIgnoreSpec]) -> Iterator[tuple[Path, str]]:
    for folder, names, files in os.walk(root):
        here = Path(folder).relative_to(root)
        names[:] = sorted(n for n in names if not _matches(rules, f"{(here / n).as_posix()}/"))
        for name in sorted(files):
            inside = (here / name).as_posix()
            if name not in _IGNORE_FILES and not _matches(rules, inside):
                yield Path(folder, name), prefix + inside


def _matches(rules: list[GitIgnoreSpec], path: str) -> bool:
    return any(rule.match_file(path) for rule in rules)


def _read_rules(folder: Path) -> GitIgnoreSpec:
    """Return the rules of the folder's ignore file and those that always apply."""
    with needing("pathspec", "pipelines"):
        from pathspec import GitIgnoreSpec
    lines: list[str] = []
    for name in _IGNORE_FILES:
        if (folder / name).is_file():
            lines = (folder / name).read_text(encoding="utf-8").splitlines()
            break
    return GitIgnoreSpec.from_lines([*lines, *_ALWAYS])
