"""Loads MLflow without what it and its libraries change in the whole process.

A job that imports MLflow later finds it as it would have without us.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from mlflow_perf.core.finders import remove_finder
from mlflow_perf.core.own_cost import call_when_imported, list_unused
from mlflow_perf.node.children import notices_children
from mlflow_perf.tracking.own_random import separate_loaded, separate_random, uses_random
from mlflow_perf.tracking.renamed_protos import rename_protos
from mlflow_perf.tracking.shared_libraries import is_own_call

_LOGGING_UTILS, _CONFIGURE = "mlflow.utils.logging_utils", "_configure_mlflow_loggers"
_BACKPORT, _COMPAT, _INSTALL = "importlib_metadata", "importlib_metadata._compat", "install"

_Changes = dict[str, tuple[str, Callable[[Any], Any]]]
"""Module → a function's name, and what makes ours of the function."""


def import_fork_hooks() -> None:
    """Import what takes a lock before each fork, as long as none waits for MLflow's import.

    Such a fork would release that lock, which it has not taken.
    """
    import_module("concurrent.futures.thread")


def import_mlflow() -> None:
    """Import MLflow in this thread, which is in a call of ours."""
    rename_protos()
    with _no_child(), _large_pattern_cache():
        import_module("mlflow")
    _hide_models()


def _hide_models() -> None:
    """Let a loop over all models of pydantic, as to rebuild them, leave out those of MLflow.

    Some of these cannot be rebuilt. Those of packages that the job uses too stay.
    """
    model = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    if model is None or "__subclasses__" in vars(model):
        return

    def find_subclasses(kind: type) -> list[type]:
        unused = list_unused()
        found: list[type] = type.__subclasses__(kind)
        return [one for one in found if str(one.__module__).partition(".")[0] not in unused]

    model.__subclasses__ = classmethod(find_subclasses)


@contextlib.contextmanager
def _no_child() -> Iterator[None]:
    """Let MLflow be imported without a child where the job would notice its end.

    It asks for the platform. For the processor, which is no part of that, Python runs `uname -p`.
    """
    facts = vars(platform.uname())
    if "processor" in facts or not notices_children():
        yield
        return
    facts["processor"] = ""
    try:
        yield
    finally:
        facts.pop("processor", None)  # the job may want to know


@contextlib.contextmanager
def _large_pattern_cache() -> Iterator[None]:
    """Let `re` keep as many compiled patterns as before; `numpy.f2py` before NumPy 2.3 keeps 50.

    A job that uses more patterns than that would compile each of them again and again.
    """
    private: Any = re
    before = getattr(private, "_MAXCACHE", None)
    try:
        yield
    finally:
        if before is not None:
            private._MAXCACHE = max(before, private._MAXCACHE)  # noqa: SLF001


@contextlib.contextmanager
def changed_modules() -> Iterator[None]:
    """Replace functions of modules that are loaded in a call of ours, before they are called."""
    changes: _Changes = {
        _LOGGING_UTILS: (_CONFIGURE, _keeping_others),
        _COMPAT: (_INSTALL, _installing_later),
    }
    separate_loaded()
    finder: Any = _Finder(changes)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        remove_finder(finder)


class _Finder:
    """Finds modules as Python does, and replaces a function of some as they are loaded.

    Args:
        changes: Module → the function's name, and what makes ours of it.
    """

    def __init__(self, changes: _Changes) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, _: object = None
    ) -> ModuleSpec | None:
        if path is None or not (name in self._changes or uses_random(name)) or not is_own_call():
            return None
        spec = PathFinder.find_spec(name, path)
        loader: Any = None if spec is None or not spec.has_location else spec.loader
        if not (hasattr(loader, "__dict__") and hasattr(loader, "exec_module")):
            return None
        # All modules of a zip file share one loader, and not each that is found is loaded.
        load = vars(loader).pop("exec_module", loader.exec_module)
        load = getattr(load, "of_loader", load)

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            load(module)
            if module.__name__ == name:
                self._change(module)

        exec_module.of_loader = load  # type: ignore[attr-defined]
        loader.exec_module = exec_module
        return spec

    def _change(self, module: Any) -> None:
        function, change = self._changes.get(module.__name__, ("", None))
        if change is not None and (found := getattr(module, function, None)) is not None:
            setattr(module, function, change(found))
        if uses_random(module.__name__):
            separate_random(module)


def _installing_later(install: Callable[[type], type]) -> Callable[[type], type]:
    """Leave Python's own `importlib.metadata` as it is, until the job imports the backport.

    The backport takes Python's finder of packages away, and its answers differ: a package without
    a license raises where Python's says None.
    """

    def install_own(finder: type) -> type:
        if not is_own_call():
            return install(finder)
        call_when_imported(_BACKPORT, lambda: install(finder))
        return finder

    return install_own


def _keeping_others(configure: Callable[..., None]) -> Callable[..., None]:
    """Let MLflow set its own loggers, but not those of SQLAlchemy."""

    def configure_own(*args: Any, **options: Any) -> None:
        if not is_own_call():
            configure(*args, **options)
            return
        before = {one: _read_state(one) for one in _list_loggers()}
        configure(*args, **options)
        for logger in _list_loggers():
            if _read_state(logger) != (state := before.get(logger, _AS_NEW)):
                logger.level, logger.handlers, logger.propagate, logger.disabled = state
                logger.handlers = list(logger.handlers)
        logging.root.manager._clear_cache()  # type: ignore[attr-defined]  # noqa: SLF001
        call_when_imported("mlflow", lambda: configure(*args, **options))

    return configure_own


_State = tuple[int, Any, bool, bool]
_AS_NEW: _State = (logging.NOTSET, [], True, False)


def _read_state(logger: logging.Logger) -> _State:
    return logger.level, logger.handlers[:], logger.propagate, logger.disabled


def _list_loggers() -> list[logging.Logger]:
    """Return the loggers of this process but MLflow's."""
    found = list(logging.root.manager.loggerDict.values())
    loggers = [one for one in found if isinstance(one, logging.Logger)]
    return [one for one in loggers if one.name.partition(".")[0] != "mlflow"]
