"""Functions of Python as they were before the job replaced any, for the code of our threads.

A test of the job may replace `os.getpid` or `open` by a mock and count the calls: ours are not its.
These are copies of the modules, so that what is later set in a module is not seen here. Objects,
such as `os.environ`, are the same.
"""

from __future__ import annotations

import os as _shown_os
import sys as _shown_sys
import types
from typing import TYPE_CHECKING, Any


def is_native(function: object) -> bool:
    """Return whether a function is one of the interpreter's own, written in C."""
    return isinstance(function, types.BuiltinFunctionType)


def load_native(name: str, *functions: str) -> Any:
    """Return a built-in module as the interpreter made it, even if a library has patched it.

    Args:
        name: Its name.
        functions: Those that show whether it was patched.
    """
    from importlib import import_module

    module = import_module(name)
    if all(is_native(getattr(module, one)) for one in functions if hasattr(module, one)):
        return module
    from importlib.machinery import BuiltinImporter
    from importlib.util import module_from_spec

    spec = BuiltinImporter.find_spec(name)
    if spec is None:  # of a built-in module, as these are in most interpreters
        return module
    fresh = module_from_spec(spec)
    BuiltinImporter.exec_module(fresh)
    return fresh


# A stream that the job replaces is flushed when nobody holds it any more.
_NOT_COPIED = {
    "__name__", "stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__",
}  # fmt: skip


def _copy(name: str, *functions: str) -> types.ModuleType:
    # Under its own name, a library that replaces each `os` that a module holds would find it.
    copy = types.ModuleType(f"{__name__}.{name}")
    original = vars(load_native(name, *functions))
    copy.__dict__.update({k: v for k, v in original.items() if k not in _NOT_COPIED})
    return copy


if TYPE_CHECKING:
    import atexit as atexit  # noqa: PLC0414 - others import it from here
    import gc as gc  # noqa: PLC0414
    import os as os  # noqa: PLC0414
    import sys as sys  # noqa: PLC0414
    import time as time  # noqa: PLC0414
    from builtins import open as _open

    open_file = _open
else:
    # The job may have replaced some before: what these names are copied from, nobody replaces.
    open_file = load_native("_io").open
    os, sys, time = _copy("os"), _copy("sys"), _copy("time")
    gc, atexit = _copy("gc", "disable", "enable", "isenabled"), _copy("atexit", "register")
    # Nothing can make `sys` anew. In a command, the start-up hook kept its functions.
    at_start = getattr(_shown_sys.modules.get("_mlflow_perf_startup"), "SYS_AT_START", {})
    sys.__dict__.update(at_start)
    in_c = vars(load_native("nt" if os.name == "nt" else "posix"))
    os.__dict__.update({name: one for name, one in in_c.items() if is_native(one)})
    # blockbuster, a guard of event loops, replaces some of its functions.
    os.path = _copy(_shown_os.path.__name__)
    clocks = load_native("time", "time", "monotonic", "thread_time", "clock_gettime", "sleep")
    time.__dict__.update({name: one for name, one in vars(clocks).items() if is_native(one)})
