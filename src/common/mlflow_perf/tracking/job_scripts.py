"""Keeps our imports of MLflow from running scripts of the job's that have a library's name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType
from typing import Any

from mlflow_perf.core.finders import remove_finder
from mlflow_perf.core.originals import os


@contextmanager
def no_scripts(is_own_call: Callable[[], bool]) -> Iterator[None]:
    """Let an import of a call of ours find no module beside the job's script.

    Python looks there first. A job that has a script `git.py` for another use would run it, because
    MLflow asks whether there is a library of that name.
    """
    finder: Any = _ScriptFinder(is_own_call)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        remove_finder(finder)


class _ScriptFinder:
    def __init__(self, is_own_call: Callable[[], bool]) -> None:
        self._is_own_call = is_own_call
        try:
            here = os.getcwd()
        except OSError:  # it is gone
            here = "/"
        script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        own = {here, os.path.normpath(os.path.join(here, os.path.dirname(script)))}
        path = {os.path.normpath(os.path.join(here, str(one))) for one in sys.path}
        self._folders = [*own & path]

    def find_spec(self, name: str, path: Sequence[str] | None, _: object = None) -> None:
        """Refuse a module of the job's folder, unless it holds MLflow or a plugin asks for it."""
        if path is not None or not self._folders or not self._is_own_call():
            return
        found = PathFinder.find_spec(name, self._folders)
        # A folder without `__init__.py` has no code.
        if found is None or found.loader is None or name in ("mlflow", "mlflow_perf"):
            return
        folder = Path(found.origin or "").parents[1 if found.submodule_search_locations else 0]
        # Where libraries are installed too, as by `pip install --target .`, all are found.
        if PathFinder.find_spec("mlflow", self._folders) or any(folder.glob("*.dist-info")):
            return
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - only CPython has frames
        while frame is not None:
            if frame.f_globals.get("__name__") == "importlib.metadata":  # a plugin's entry point
                return
            frame = frame.f_back
        said = f"{found.origin} is in the place of the library {name}: rename it"
        raise ModuleNotFoundError(said, name=name)
