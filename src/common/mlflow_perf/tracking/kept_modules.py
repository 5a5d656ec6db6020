"""Keeps what MLflow brought into the process where the job takes it out of `sys.modules`.

A job may remove the modules that it did not have at its start, as pytest's `pytester` does, and
whatever loads its code anew. It has not imported numpy then, but we have, and Python can load that
only once. So the job's own first import of such a package finds it as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import FileFinder, ModuleSpec
from itertools import accumulate
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from mlflow_perf.core.own_cost import is_unused, list_unused, use_again

_CALLS = "mlflow_perf.tracking."
_modules = 0
"""How many modules there were at the last look."""


@contextmanager
def keeping_brought() -> Iterator[None]:
    """Keep the modules that the block loads for us, as long as the job does not use them."""
    try:
        yield
    finally:
        keep_brought()


def keep_brought() -> None:
    """Keep the modules that were loaded for us so far, and that the job does not use."""
    global _modules  # noqa: PLW0603 - of the process
    if (count := len(sys.modules)) == _modules:  # a look at all of them takes 1 ms
        return
    _modules = count
    packages = list_unused()
    brought: dict[str, dict[str, ModuleType]] = {}  # folder → module's name → module
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] in packages and isinstance(module, ModuleType):
            brought.setdefault(_find_folder(name), {})[name] = module
    for folder, modules in brought.items():
        finder: Any = sys.path_importer_cache.get(folder)
        if finder.__class__ is FileFinder:
            # Of another copy of this package, which the job took out of the list.
            before: Any = vars(finder).get("find_spec")
            kept = _Kept(getattr(before, "find", finder.find_spec), getattr(before, "modules", {}))
            kept.modules.update({name: (module, kept) for name, module in modules.items()})
            vars(finder)["find_spec"] = kept


def _find_folder(name: str) -> str:
    """Return where a module's package was found; it has a file, as `google` above it has not."""
    for above in accumulate(name.split("."), "{}.{}".format):
        package = sys.modules.get(above)
        own = vars(package) if isinstance(package, ModuleType) else {}
        if file := own.get("__file__"):
            return str(Path(file).parents[1 if "__path__" in own else 0])
    return ""


@dataclass
class _Kept:
    """Finds modules in a folder as Python's own finder does, and those that are kept as they are.

    It takes the place of a finder's method: a list of finders is one that jobs restore, too.

    Attributes:
        find: The finder's method.
        modules: Name → module, and which of these objects kept it.
    """

    find: Callable[..., ModuleSpec | None]
    modules: dict[str, tuple[ModuleType, _Kept]] = field(default_factory=dict)

    def __call__(self, name: str, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = self.find(name, target)
        module, keeper = self.modules.get(name, (None, self))
        is_missing = module is not None and name not in sys.modules and keeper.is_unused(name)
        if spec is not None and spec.loader is not None and is_missing:
            loader: Any = _KeptLoader(spec.loader, module, self)
            spec.loader = loader
        return spec

    def is_unused(self, name: str) -> bool:
        """Return what the copy of this package knows that kept the module; another one does not."""
        return is_unused(name)

    def restore(self, name: str) -> None:
        """Put a package and all that it imports back into Python's list."""
        keeper = self.modules[name][1]
        packages = keeper.use(name)
        for other, (module, _) in list(self.modules.items()):
            if other.partition(".")[0] in packages:
                sys.modules.setdefault(other, module)

    def use(self, name: str) -> set[str]:
        """Note who imports a package; return it and the packages that it imports.

        That may be a call of another copy of this package, which only its name tells.
        """
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - only CPython has frames
        while frame is not None and frame.f_code.co_name != "load_and_call":
            frame = frame.f_back
        is_own = frame is not None and str(frame.f_globals.get("__name__")).startswith(_CALLS)
        return use_again(name, is_own=is_own)


class _KeptLoader:
    """Loads a module that is there; in all else it is the loader of the module's file."""

    def __init__(self, loader: Any, module: Any, kept: _Kept) -> None:
        self._loader, self._kept = loader, kept
        self._module: ModuleType = module
        self._spec = module.__spec__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # Python has put the new one there
        self._kept.restore(module.__name__)
