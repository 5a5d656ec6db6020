"""Calls a function when a module is imported for the first time.

Imports nothing but sys, not even the package it belongs to: every Python process below a session
loads this file at its start (`sitecustomize.py` beside it), most of them for nothing. With the
usual imports (typing, logging, importlib.abc) each would start several milliseconds later.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    _Function = Callable[[ModuleType], None]

__all__ = ["call", "forget"]


class _Finder:
    """Finds the module as all the others would, and puts a loader around its own."""

    def __init__(self) -> None:
        self.wanted: dict[str, _Function] = {}
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec with a loader that calls back; None for all other modules."""
        if fullname not in self.wanted or self._searching:
            return None
        import importlib.util

        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            loader: Any = _Loader(spec.loader, self.wanted[fullname])
            spec.loader = loader
        return spec


class _Loader:
    """Loads by the module's own loader, then calls the function."""

    def __init__(self, inner: Any, function: _Function) -> None:
        self._inner = inner
        self._function = function

    def create_module(self, spec: ModuleSpec) -> Any:
        """Do as the module's own loader."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Do as the module's own loader, then call the function."""
        # The module itself sees its own loader, as without us.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _safely(self._function, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _safely(function: _Function, module: ModuleType) -> None:
    try:
        function(module)
    except Exception:
        # The job wants its module, whatever we make of it.
        import logging

        logger = logging.getLogger("mlflow_perf.integrations")
        logger.warning("%s cannot be followed.", module.__name__, exc_info=True)


_finder: Any = _Finder()


def call(name: str, function: _Function) -> None:
    """Call a function with a module as soon as it is imported: now, if it is already.

    Args:
        name: Full name of the module.
        function: What to call; if it raises, there is a warning.
    """
    module = sys.modules.get(name)
    if module is not None:
        _safely(function, module)
        return
    _finder.wanted[name] = function
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget(name: str) -> None:
    """Call nothing for a module that has not been imported yet."""
    _finder.wanted.pop(name, None)
    if not _finder.wanted and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
