"""MLflow's protobuf files have names of their own where we load it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import count
from pkgutil import iter_modules
from typing import Any

from mlflow_perf.tracking.shared_libraries import is_own_call

_PROTOS, _FOLDER = "mlflow.protos", "mlflow_perf/"
_PACKAGES = ("mlflow", "databricks")  # of MLflow's own
_last_numbers = count(2**29 - 1, -1)  # of a field, the largest first: nobody takes these


@contextlib.contextmanager
def renamed_protos() -> Iterator[None]:
    """Give MLflow's protobuf files names of their own.

    They are in one pool with the job's, where two files called `service.proto` are an error, and
    so are two that extend protobuf's options by the same number.
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
    """A pool of protobuf's, to which files are added in a folder of ours."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def AddSerializedFile(self, content: bytes) -> Any:  # noqa: N802 - protobuf's name
        """Add a file, and return its descriptor."""
        descriptors: Any = import_module("google.protobuf.descriptor_pb2")
        file = descriptors.FileDescriptorProto.FromString(content)
        file.name = _FOLDER + file.name
        file.dependency[:] = [
            _FOLDER + name if self._has(_FOLDER + name) else name for name in file.dependency
        ]
        if file.package.partition(".")[0] not in _PACKAGES:
            _rename_package(file)
        return self._pool.AddSerializedFile(file.SerializeToString())

    def _has(self, name: str) -> bool:
        try:
            self._pool.FindFileByName(name)
        except KeyError:
            # Protobuf's own; or the job has begun to import MLflow, but has not come to the end.
            return False
        return True


def _rename_package(file: Any) -> None:
    """Give what MLflow has copied of others, ScalaPB's options, names and numbers of its own."""
    package, file.package = file.package, f"mlflow_perf.{file.package}"
    for field in [*file.extension, *_list_fields(file.message_type)]:
        if field.type_name:  # a number has none
            field.type_name = field.type_name.replace(f".{package}.", f".{file.package}.", 1)
    for extension in file.extension:
        extension.number = next(_last_numbers)


def _list_fields(messages: Iterable[Any]) -> Iterator[Any]:
    for message in messages:
        yield from message.field
        yield from _list_fields(message.nested_type)
