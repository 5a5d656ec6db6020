"""Measures the memory of packages that mlflow-perf loaded and that the job uses too."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from itertools import islice
from opcode import opmap
from types import ModuleType
from typing import ClassVar

from mlflow_perf.core.finders import remove_finder

_US, _JOB = "mlflow_perf", ""
_WAITING = 30
"""Modules that wait for the one that is being loaded: the longest chain of MLflow's has 24."""
_IMPORT_NAME, _EXTENDED_ARG = opmap["IMPORT_NAME"], opmap["EXTENDED_ARG"]
_read_dict: Callable[[ModuleType], dict[str, object]] = vars(ModuleType)["__dict__"].__get__


class ImportWatch:
    """Measures the packages that are loaded for us, and notes which of them the job imports later.

    MLflow loads numpy, pandas and pyarrow. A job that imports them later finds them loaded, and
    Python keeps no record of that import. But before Python returns a loaded module, it reads the
    attribute `_initializing` of the module's spec; a spec of ours notes which code is importing.

    The job uses the packages that its code imports, and all that these import. A part of a package
    that another package loads first, such as `pyarrow.fs` by MLflow, is measured separately: it
    counts only if the job imports that part too. No import is changed, and a module gets its own
    spec back as soon as the job has imported it.

    Args:
        is_own: Returns whether the present thread works for us.
        read_bytes: Returns the resident memory of this process.
        look: Called before a module is loaded for us: the job may work between two imports.
    """

    def __init__(
        self,
        is_own: Callable[[], bool],
        read_bytes: Callable[[], int],
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self._is_own, self._read_bytes, self._look = is_own, read_bytes, look
        self._sizes: dict[str, int] = {}
        self._parts: dict[str, str] = {}  # module → the part that it belongs to, if any
        self._asked: dict[str, set[str]] = {}  # package or part, or the job → what it imports
        self._sought: set[str] = set()
        self._newest = ""
        self._bytes = self._first = self._modules = self._used_bytes = 0
        self._is_stale = False
        self._awaited: dict[str, list[Callable[[], object]]] = {}
        _WatchedSpec.watch = self

    def start(self) -> None:
        """Record the packages that are loaded from now on."""
        self._first = self._modules = len(sys.modules)
        self._newest, self._bytes = "", self._read_bytes()
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Record only which code imports the loaded packages."""
        remove_finder(self)
        self._watch_new()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Note that a module is about to be loaded; the other finders find it."""
        del path, target
        if name in self._sought:
            return  # MLflow tries to import the same missing modules a dozen times for each run
        self._sought.add(name)
        package = unit = name.partition(".")[0]
        if is_own := package != _US and self._is_own():
            self._look()
        if package in self._sizes:
            asker = self._find_unit(_find_asker())
            unit = asker if asker.partition(".")[0] == package else name
            if unit != package:
                self._parts[name] = unit
        if unit != self._newest:
            # Memory that was added since a package began to load counts as that package's.
            now = self._read_bytes()
            if self._newest:
                self._sizes[self._newest] += max(0, now - self._bytes)
            self._newest, self._bytes = unit if is_own else "", now
            if is_own:
                self._sizes.setdefault(unit, 0)
            self._watch_new()
            self.note(name)

    def _watch_new(self) -> None:
        # Called at each import: a copy of all modules, of which there are thousands, takes 0.1 ms.
        # The new ones are the last, but for those that were waiting for them, which Python puts
        # behind them as they are done.
        before, self._modules = self._modules, len(sys.modules)
        last = min(self._modules - before + _WAITING, self._modules - self._first)
        for module in list(islice(reversed(sys.modules.values()), max(0, last))):
            if not issubclass(type(module), ModuleType):
                continue
            # Out of its dictionary: an attribute of a lazy module would load it, or raise.
            spec = _read_dict(module).get("__spec__")
            if type(spec) is ModuleSpec:
                spec.__class__ = _WatchedSpec

    def _find_unit(self, module: str) -> str:
        return self._parts.get(module) or module.partition(".")[0]

    def note(self, module: str) -> bool:
        """Note which code imports a module now; return whether that is the job's."""
        unit, asker = self._find_unit(module), self._find_unit(_find_asker())
        if asker not in self._sizes:
            if asker == _US or self._is_own():
                return False
            asker = _JOB
        if unit not in self._asked.setdefault(asker, set()):
            self._asked[asker].add(unit)
            self._is_stale = True
        return asker == _JOB

    def call_when_imported(self, package: str, call: Callable[[], object]) -> None:
        """Make a call when the job first uses a package that is being loaded for us."""
        self._awaited.setdefault(package, []).append(call)

    def call_awaited(self, module: str) -> None:
        """Make the calls that await a package which the job uses from its import of a module on."""
        if self._awaited:
            used = self._reach({self._find_unit(module)})
            for package in [name for name in list(self._awaited) if name in used]:
                for call in self._awaited.pop(package, ()):
                    call()

    def has_loaded(self, module: str) -> bool:
        """Return whether a module's package was loaded for us."""
        return module.partition(".")[0] in self._sizes.keys() - sys.stdlib_module_names

    def is_unused(self, module: str) -> bool:
        """Return whether a module's package was loaded for us, and the job does not use it."""
        is_ours = module.partition(".")[0] in self._sizes
        return is_ours and self._find_unit(module) not in self._use()

    def list_unused(self) -> set[str]:
        """Return the packages that were loaded for us, and that the job does not use."""
        return self._sizes.keys() - self._use() - sys.stdlib_module_names

    def use_again(self, module: str, *, is_own: bool) -> set[str]:
        """Note that a module is imported once more; return its package, and those it imports."""
        unit = self._find_unit(module)
        if not is_own:
            self._asked.setdefault(_JOB, set()).add(unit)
            self._is_stale = True
            self.call_awaited(module)
        return {one.partition(".")[0] for one in self._reach({unit})}

    def used_bytes(self) -> int:
        """Return the memory of packages that were loaded for us and that the job uses too."""
        if self._is_stale:
            self._is_stale = False
            self._used_bytes = sum(self._sizes.get(package, 0) for package in self._use())
        return self._used_bytes

    def _use(self) -> set[str]:
        """Return the packages and parts that the job imports, and what these import."""
        return self._reach(set(self._asked.get(_JOB, ())))

    def _reach(self, found: set[str]) -> set[str]:
        """Return packages and parts, and what they import."""
        used: set[str] = set()
        while found:
            used |= found
            found = {p for package in found for p in self._asked.get(package, ())} - used
        return used


def _find_asker() -> str:
    """Return the name of the module whose code imports something now."""
    name = ""
    frame = sys._getframe(1)  # noqa: SLF001 - only CPython has frames, and only there are specs asked
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if frame.f_globals is not globals() and name.partition(".")[0] != "importlib":
            break
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return name


def _is_import() -> bool:
    """Return whether a spec is asked because code imports its module.

    Python also asks it where code looks for an attribute that the module does not have, as
    `hasattr(module, "__version__")` does, and pickle for whatever does not say where it is from.
    """
    frame = sys._getframe(2)  # noqa: SLF001 - see `_find_asker`
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "importlib":
        return True
    operations = frame.f_code.co_code[max(frame.f_lasti, 0) :: 2]
    return next((one for one in operations if one != _EXTENDED_ARG), None) == _IMPORT_NAME


class _WatchedSpec(ModuleSpec):
    """The spec of a loaded module; it notes which code imports the module."""

    watch: ClassVar[ImportWatch]

    @property
    def _initializing(self) -> bool:
        with contextlib.suppress(Exception):  # the job's import goes on, whatever fails here
            if _is_import() and self.watch.note(self.name):
                self.__class__ = ModuleSpec  # type: ignore[assignment]  # as it was
                _WatchedSpec.watch.call_awaited(self.name)
        return bool(self.__dict__.get("_initializing"))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__dict__["_initializing"] = value
