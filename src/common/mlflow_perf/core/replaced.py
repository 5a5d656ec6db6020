"""What a test of the job has replaced: mocks and clocks whose calls are the job's alone.

Each call of ours would take one of the values that a mock has, or be counted by it.
"""

from __future__ import annotations

import os
import sys
import time
import types
from typing import Any

from mlflow_perf.core.originals import gc, is_native

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "time_ns")
# With those of Python, the modules that a report and MLflow's calls use.
_LIBRARIES = {
    "google", "mlflow", "msgspec", "numpy", "packaging", "psutil", "requests", "sqlalchemy",
    "urllib3", "yaml",
}  # fmt: skip
# Those that MLflow imports besides: a mock in the place of one would stay in MLflow.
_IMPORTED = _LIBRARIES | {
    "alembic", "cachetools", "click", "cloudpickle", "databricks", "docker", "fastapi", "flask",
    "git", "graphene", "importlib_metadata", "matplotlib", "opentelemetry", "pandas", "pyarrow",
    "pydantic", "scipy", "sklearn", "sqlparse", "starlette", "typing_extensions",
}  # fmt: skip
# What was made of a text, Python's own files and ours.
_NOT_OF_JOB = (
    "<",
    types.__file__.removesuffix("types.py"),
    __file__.removesuffix("core/replaced.py"),
)
_MOCKS = ("unittest.mock", "mock.mock")
# The types of most names: a look at each name of Python's modules takes long.
_NO_MOCKS = {
    bool, bytes, dict, float, int, list, set, str, tuple, type(None), types.ModuleType,
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, property, classmethod, staticmethod,
}  # fmt: skip
_MADE = (type, types.FunctionType)
# The classes of each module in which nothing was replaced, and what its values were then.
_clean: dict[tuple[str, bool], tuple[list[type], int]] = {}
_whole: set[bool] = set()  # not empty once all that reports need is imported


def explain_replaced() -> str:
    """Return what the job has replaced that a report would call, or nothing."""
    # A library as pyfakefs replaces the `os` that each module holds.
    if (shown := type(os)) is not types.ModuleType:
        return f"{shown.__module__.partition('.')[0]} replaces the system's files"
    if type(os.environ).__name__ != "_Environ":
        return "the job replaces os.environ"
    for name, one in vars(os.environ).items():
        if is_mock(one):
            return f"a mock replaces os.environ.{name}"
    # In a test, the job's own function in a module of Python's stands for one, too. pytest sets the
    # variable, which what a test starts has as well.
    in_test = "PYTEST_CURRENT_TEST" in os.environ and "_pytest" in sys.modules
    for name, module in sys.modules.copy().items() if in_test or _has_mocks() else ():
        if found := _find_stand_in(name, module, in_test=in_test):
            return found
    if in_test and (found := find_hidden(_IMPORTED) or _find_finder()):
        return found
    if not _whole and (found := find_module_patch()):
        return found
    for clock in _CLOCKS:
        # One of freezegun may go on by a second with each call.
        if not is_native(one := getattr(time, clock)):
            by = "the job" if _is_of_job(one) else one.__module__.partition(".")[0]
            return f"{by} replaces time.{clock}"
    return ""


def note_all_imported() -> None:
    """Note that a report has imported all that it and MLflow need."""
    _whole.add(True)


def may_log() -> bool:
    """Return whether a record of `logging`, which notes the time and the process, calls the system.

    Otherwise it calls what the job has put there.
    """
    return all(map(is_native, (time.time, time.time_ns, getattr(os, "getpid", len))))


def find_socket_double() -> str:
    """Return what has put a class of its own in the place of Python's sockets, or nothing.

    It answers in the place of servers, refuses to connect, or counts the connections. What makes a
    loop of its own of them (gevent), or goes through a proxy (PySocks), does connect.
    """
    shown = getattr(sys.modules.get("socket"), "socket", None)
    by = str(getattr(shown, "__module__", "socket")).partition(".")[0]
    return "" if by in ("socket", "socks", "gevent", "eventlet") else by


def is_mock(value: object) -> bool:
    """Return whether a value is a mock of `unittest.mock`."""
    kind = type(value)
    if kind is types.FunctionType and value.__code__.co_filename == "<string>":  # type: ignore[attr-defined]
        kind = type(getattr(value, "mock", None))  # with `autospec` it is a function
    return kind.__module__ in _MOCKS and hasattr(kind, "assert_called")


def _has_mocks() -> bool:
    """Return whether there is a mock: each has a class of its own."""
    found = (getattr(sys.modules.get(name), "Base", None) for name in _MOCKS)
    kinds: list[type] = [kind for kind in found if isinstance(kind, type)]
    for kind in kinds:  # it grows
        kinds += kind.__subclasses__()
    return any(
        vars(sys.modules[kind.__module__]).get(kind.__name__) is not kind
        for kind in kinds
        if kind.__module__ in _MOCKS
    )


def _is_called(module: str, libraries: set[str] = _LIBRARIES) -> bool:
    """Return whether a report and MLflow may call a module of this name."""
    top = module.partition(".")[0]
    return (top in sys.stdlib_module_names or top in libraries) and top != "unittest"


def find_hidden(libraries: set[str] = _LIBRARIES) -> str:
    """Return what hides a module, as in a test of what the job does without it, or nothing.

    MLflow would be without it from its import to the end of the process.
    """
    modules: dict[str, Any] = sys.modules
    hidden = [name for name, module in modules.copy().items() if module is None]
    named = (f"the job hides the module {name}" for name in hidden if _is_called(name, libraries))
    return next(named, "")


def find_module_patch() -> str:
    """Return what will set `sys.modules` back to what it was, as a test does, or nothing.

    What is imported meanwhile would be lost, and a module as NumPy's cannot be imported twice.
    """
    kinds = [getattr(sys.modules.get(name), "_patch_dict", None) for name in _MOCKS]
    # Python keeps no list of these objects, and this one takes long.
    for one in gc.get_referrers(sys.modules) if any(kinds) else ():
        # Before Python 3.13 it is the object's own dict that refers to it, if there is one.
        fields: dict[str, Any] = one if type(one) is dict else getattr(one, "__dict__", {})
        is_patch = type(one) in kinds or {"in_dict", "_original", "values"} <= fields.keys()
        if is_patch and fields["in_dict"] is sys.modules and fields["_original"] is not None:
            # That of a decorator is kept when its function has ended.
            given: dict[str, Any] = fields["values"]
            if all(sys.modules.get(name, given) is one for name, one in given.items()):
                return "a test's patch.dict replaces sys.modules"
    return ""


def _find_finder() -> str:
    """Return a finder of the job's own, which may hide a module, or nothing."""
    for finder in sys.meta_path:
        kind = finder if isinstance(finder, type) else type(finder)
        if _is_of_job(kind):
            return f"the job's {kind.__name__} finds modules"
    return ""


def _find_stand_in(name: str, module: Any, *, in_test: bool) -> str:
    """Return what is replaced in a module that we may use, or nothing."""
    is_module = isinstance(module, types.ModuleType)
    if not is_module and is_mock(module) and _is_called(name, _IMPORTED):
        return f"a mock replaces {name}"
    if not _is_called(name):
        return ""
    # A lazy module is loaded when anybody asks it for an attribute.
    inside = dict(object.__getattribute__(module, "__dict__")) if is_module else {}
    if (clean := _clean.get((name, in_test))) and _hash_values(inside, clean[0]) == clean[1]:
        return ""
    kinds = [one for one in inside.values() if isinstance(one, type) and one.__module__ == name]
    looked_at = _hash_values(inside, kinds)
    of_kinds = [(f"{name}.{kind.__name__}", dict(vars(kind))) for kind in kinds]
    for place, named in [(name, inside), *of_kinds]:
        for key, one in named.items():
            if type(one) in _NO_MOCKS:
                continue
            if is_mock(one):
                return f"a mock replaces {place}.{key}"
            # Hooks and the like are there to be set.
            is_set = key.startswith("_") or key.endswith("hook") or key == "showwarning"
            is_set = is_set and key != "__import__"
            if in_test and not is_set and isinstance(one, _MADE) and _is_of_job(one):
                return f"the job replaces {place}.{key}"
    _clean[name, in_test] = kinds, looked_at
    return ""


def _hash_values(inside: dict[str, Any], kinds: list[type]) -> int:
    """Return a number that changes when a module's name, or a class's, is given another value."""
    values = [list(inside.values()), *(list(vars(kind).values()) for kind in kinds)]
    return hash(tuple(tuple(map(id, of_one)) for of_one in values))


def _is_of_job(value: Any) -> bool:
    """Return whether a function or class is neither Python's nor a library's."""
    if isinstance(value, type):  # its module may be a file that hides one of Python's
        made_in = None if _is_called(value.__module__) else sys.modules.get(value.__module__)
        file = getattr(made_in, "__file__", None) or "<built in>"
    else:  # a clock may be the method of an iterator
        file = getattr(getattr(value, "__code__", None), "co_filename", "")
    return not (is_in_library(file) or file.startswith(_NOT_OF_JOB))


def is_in_library(file: str) -> bool:
    """Return whether a file of code belongs to an installed package."""
    return any(folder in file for folder in ("site-packages", "dist-packages"))
