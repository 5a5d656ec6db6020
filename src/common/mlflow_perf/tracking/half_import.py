"""Leaves nothing of a package whose import failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlflow_perf.core.originals import sys


@contextmanager
def whole_imports() -> Iterator[None]:
    """Where the block fails, let a package that it could not import be imported whole later.

    A test of the job may have hidden a module for a moment. Python keeps the parts of the package
    that needed it, and a later import finds these without their package's names for them.
    """
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - before:
            above, _, part = name.rpartition(".")
            while part and above:
                if sys.modules.get(above) is None:
                    sys.modules.pop(name, None)
                above, _, part = above.rpartition(".")
        raise
