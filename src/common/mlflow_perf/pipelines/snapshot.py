"""Copy a component's code for its steps: exactly the files that Azure ML would upload.

As in azure-ai-ml, `.amlignore` (or `.gitignore`) of the code's folder is obeyed, and
`additional_includes` keep their names at the root of the copy. What runs of pipelines wrote into
the folder is left out too.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlflow_perf.core.extras import needing
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import Step
from mlflow_perf.pipelines.output_folder import is_output, is_own, is_run
from mlflow_perf.pipelines.sources import CodeSource
from mlflow_perf.publish.journal_file import find_state_folder

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_IGNORE_FILES = (".amlignore", ".gitignore")
# The second is the default place of what runs write; earlier versions wrote no marker there.
_ALWAYS = ("__pycache__/", "/pipeline-runs/")
_log = get_logger("mlflow_perf.pipelines")


CodeState = tuple[tuple[str, int, int], ...]
"""Name, size and time of change, in ns, of each file of a component's code."""


class Snapshot(NamedTuple):
    """The code of a component as it was at one moment.

    Attributes:
        folder: Its copy; None for a command that needs no code.
        fault: Why it could not be copied; empty if it could.
    """

    folder: Path | None = None
    fault: str = ""


def take_snapshots(
    steps: Mapping[str, Step], folder: Path, *, repeated: Collection[str]
) -> dict[str, Snapshot]:
    """Copy the code of all steps, once for those that have the same, and return it by step.

    Whoever changes the code from then on changes no step that has yet to begin.

    Args:
        steps: The steps by name.
        folder: Folder to make the copies in. The only step that has it runs in the copy (see
            `find_own_code`); others are below `snapshots`.
        repeated: The steps that may be repeated, which begin with the same code again.
    """
    sources = {name: (step.code, step.includes) for name, step in steps.items()}
    users = Counter(sources.values())
    taken: dict[CodeSource, Snapshot] = {(None, ()): Snapshot()}
    for name, source in sources.items():
        if source in taken:
            continue
        is_own = users[source] == 1 and name not in repeated
        shared = folder / "snapshots" / str(len(taken))
        copy, fault = find_own_code(folder / name) if is_own else shared, ""
        try:
            copy_code(*source, copy)
        except PipelineError as error:
            fault = str(error)
        except OSError as error:  # such as a full disk
            fault = f"{error.filename or copy}: {error.strerror}"
        taken[source] = Snapshot(copy, fault)
    return {name: taken[source] for name, source in sources.items()}


def read_state(code: Path | None, includes: tuple[Path, ...]) -> CodeState:
    """Return by what a component's code is known to be the same as before.

    Raises:
        OSError: It cannot be read.
    """
    files = list_files(code, includes)  # links to nothing are not copied
    facts = ((name, source.stat()) for source, name in files if source.exists())
    return tuple((name, fact.st_size, fact.st_mtime_ns) for name, fact in facts)


def find_own_code(folder: Path) -> Path:
    """Return where a step has its own copy of its code: it runs there.

    Args:
        folder: The step's folder.
    """
    return folder / "code"


def copy_code(code: Path | None, includes: tuple[Path, ...], target: Path) -> None:
    """Copy a component's code and its includes into `target`.

    Sockets, named pipes and files that vanish meanwhile are left out, unless they are `code` or an
    include themselves. Nothing stays of a copy that fails, as on a full disk.

    Args:
        code: Folder or file of the code; None for a command that needs none.
        includes: Files and folders to copy beside it.
        target: Folder to make.

    Raises:
        PipelineError: Two of them have the same name, or a file cannot be read.
    """
    seen: dict[str, Path] = {}
    folders = set[Path]()
    try:
        _make_folder(target, Path())
        for source, name in list(list_files(code, includes)):  # before the first copy is made
            if name in seen:
                first = seen[name]
                raise PipelineError(f"Both {first} and {source} would be {name} of the snapshot.")
            place = target / name
            if place.parent not in folders:
                folders.add(place.parent)
                _make_folder(target, Path(name).parent)
            seen[name] = source  # not before its folder is ours, as a fault removes it
            _copy_file(source, place, is_needed=source in (code, *includes))
    except (OSError, PipelineError):
        for name in seen:
            with suppress(OSError):
                (target / name).unlink()
        raise


def _make_folder(target: Path, inside: Path) -> None:
    """Make a folder in the target, if it is not there.

    A link in its place, which an attempt of the step has made, may lead to files of the user.
    """
    for folder in (target, *(target / path for path in (*reversed(inside.parents), inside))):
        if folder.is_symlink():
            folder.unlink()
        folder.mkdir(parents=True, exist_ok=True)


def _copy_file(source: Path, place: Path, *, is_needed: bool) -> None:
    """Copy a file, if it still exists and can be part of a program's code.

    Raises:
        PipelineError: It cannot be copied.
    """
    try:
        mode = source.stat().st_mode
        if not is_needed and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
            return
        if not stat.S_ISREG(mode):
            raise PipelineError(f"The code {source} is no file, and cannot be copied.")
        place.unlink(missing_ok=True)  # it may be a link by now, or be protected
        shutil.copy2(source, place)
    except OSError as error:
        if is_needed or source.exists() or not isinstance(error, FileNotFoundError):
            raise PipelineError(f"The code {source} cannot be copied: {error}.") from error
        if source.is_symlink():
            _log.warning("The link %s leads to no file, and the step has no copy of it.", source)
        place.unlink(missing_ok=True)


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
    outputs: list[Path] = []
    journals = find_state_folder()  # where the run of the pipeline has one, too
    for folder, names, files in os.walk(root, followlinks=True):
        here = Path(folder).relative_to(root)
        if is_output(Path(folder)):
            outputs.append(here)
        names[:] = sorted(
            n
            for n in names
            if not _matches(rules, f"{(here / n).as_posix()}/")
            and not _is_ours(here / n, outputs)
            and not is_run(Path(folder, n))
            and Path(folder, n).absolute() != journals
            and not _leads_back(Path(folder, n), here)
        )
        for name in sorted(files):
            inside = here / name
            if name in _IGNORE_FILES or _matches(rules, inside.as_posix()):
                continue
            if not _is_ours(inside, outputs):
                yield Path(folder, name), prefix + inside.as_posix()


def _leads_back(path: Path, here: Path) -> bool:
    """Return whether a folder is a link to one of those above it, with a warning if it is.

    Args:
        path: The folder.
        here: Path from the code's folder to the one that holds it.
    """
    if not path.is_symlink():
        return False
    goal, above = path.resolve(), list(path.parents)[: len(here.parts) + 1]
    if not any(folder.resolve().is_relative_to(goal) for folder in above):
        return False
    _log.warning(
        "The link %s leads back to a folder above it, and is not in the step's copy.", path
    )
    return True


def _is_ours(path: Path, outputs: list[Path]) -> bool:
    above = (o for o in outputs if path.is_relative_to(o))
    return any(is_own(path.relative_to(output).as_posix()) for output in above)


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
