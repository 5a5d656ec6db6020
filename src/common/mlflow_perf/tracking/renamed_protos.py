"""MLflow's protobuf files have names of their own where we load it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from mlflow_perf.tracking.shared_libraries import is_own_call

_PROTOS, _FOLDER = "mlflow.protos", "mlflow_perf/"


@contextlib.contextmanager
def renamed_protos() -> Iterator[None]:
    """Give MLflow's protobuf files names of their own.

    They are in one pool with the job's, where two files called `service.proto` are an error.
    """
    pools: Any = import_module("google.protobuf.descriptor_pool")
    before = pools.Default

    def find_pool() -> Any:
        asker = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - protobuf is CPython's
        is_ours = str(asker).startswith(_PROTOS) and is_own_call()
        return _RenamingPool(before()) if is_ours else before()

    pools.Default = find_pool
    try:
        yield
        # Those that MLflow imports only when it needs them refer to the others by name.
        for module in iter_modules(import_module(_PROTOS).__path__):
            with contextlib.suppress(Exception):
                import_module(f"{_PROTOS}.{module.name}")
    finally:
        if pools.Default is find_pool:
            pools.Default = before


class _RenamingPool:
    """A pool of protobuf's, to which files without a folder are added in a folder of ours."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def AddSerializedFile(self, content: bytes) -> Any:  # noqa: N802 - protobuf's name
        """Add a file, and return its descriptor."""
        descriptors: Any = import_module("google.protobuf.descriptor_pb2")
        file = descriptors.FileDescriptorProto.FromString(content)
        file.name = _rename(file.name)
        file.dependency[:] = [
            _rename(name) if self._has(_rename(name)) else name for name in file.dependency
        ]
        return self._pool.AddSerializedFile(file.SerializeToString())

    def _has(self, name: str) -> bool:
        try:
            self._pool.FindFileByName(name)
        except KeyError:
            return False  # the job has begun to import MLflow, but has not come to the end
        return True


def _rename(name: str) -> str:
    return name if "/" in name else _FOLDER + name
