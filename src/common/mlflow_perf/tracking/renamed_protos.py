"""MLflow's protobuf files have names of their own where we load it.

They are in one pool with the job's, where two files called `service.proto` are an error, and so are
two that extend protobuf's options by the same number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from mlflow_perf.tracking.shared_libraries import is_own_call

_PROTOS, _FOLDER = "mlflow.protos", "mlflow_perf/"
_PACKAGES = ("mlflow", "databricks")  # of MLflow's own
_LAST_NUMBER = 2**29 - 1  # of a field: nobody takes the largest ones

_are_renamed = False
"""Whether a file was renamed: whoever loads the others, or MLflow once more, needs it so, too."""


def rename_protos() -> None:
    """Rename the files of MLflow that are loaded from now on by a call of ours, or after one."""
    pools: Any = import_module("google.protobuf.descriptor_pool")
    before = pools.Default
    if getattr(before, "__module__", "") == __name__:
        return

    def find_pool() -> Any:
        asker = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - protobuf is CPython's
        if not str(asker).startswith(_PROTOS) or not (_are_renamed or is_own_call()):
            return before()
        return _RenamingPool(before())

    pools.Default = find_pool


class _RenamingPool:
    """A pool of protobuf's, to which files are added in a folder of ours."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def AddSerializedFile(self, content: bytes) -> Any:  # noqa: N802 - protobuf's name
        """Add a file, and return its descriptor."""
        global _are_renamed  # noqa: PLW0603 - there is one pool
        descriptors: Any = import_module("google.protobuf.descriptor_pb2")
        file = descriptors.FileDescriptorProto.FromString(content)
        if getattr(self._find(file.name), "serialized_pb", None) == content:
            return self._pool.AddSerializedFile(content)  # the job has begun to import MLflow
        _are_renamed = True
        file.name = _FOLDER + file.name
        file.dependency[:] = [
            _FOLDER + name if self._find(_FOLDER + name) else name for name in file.dependency
        ]
        if file.package.partition(".")[0] not in _PACKAGES:
            _rename_package(file)
        return self._pool.AddSerializedFile(file.SerializeToString())

    def _find(self, name: str) -> Any:
        try:
            return self._pool.FindFileByName(name)
        except KeyError:
            return None


def _rename_package(file: Any) -> None:
    """Give what MLflow has copied of others, ScalaPB's options, names and numbers of its own."""
    package, file.package = file.package, f"mlflow_perf.{file.package}"
    for field in [*file.extension, *_list_fields(file.message_type)]:
        if field.type_name:  # a number has none
            field.type_name = field.type_name.replace(f".{package}.", f".{file.package}.", 1)
    for i, extension in enumerate(file.extension):
        extension.number = _LAST_NUMBER - i  # each time the same, or it is another file


def _list_fields(messages: Iterable[Any]) -> Iterator[Any]:
    for message in messages:
        yield from message.field
        yield from _list_fields(message.nested_type)
