"""Frees a forked child from the imports that other threads of its parent were in the middle of.

Python has a lock for each module that is being imported. The child has a copy of it, but not the
thread that holds it: where it imports that module too, it would wait for ever. `report()` imports
dozens of modules at its first call, and a thread of the job may fork at that moment.
"""

from __future__ import annotations

import sys
import threading

from mlflow_perf.core.originals import os

_bootstrap = vars(sys.modules["_frozen_importlib"])


def _forget_imports() -> None:
    """Let the child import anew what nobody goes on to import."""
    locks = _bootstrap.get("_module_locks", {})
    this_thread = threading.get_ident()
    for name, find_lock in list(locks.items()):
        owner = getattr(find_lock(), "owner", None)
        if owner == this_thread:
            continue
        locks.pop(name, None)
        spec = getattr(sys.modules.get(name), "__spec__", None)
        # Not as an attribute: a spec of ours notes who asks.
        if owner is not None and getattr(spec, "__dict__", {}).get("_initializing"):
            del sys.modules[name]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_imports)
