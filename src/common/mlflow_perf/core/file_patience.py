"""Work on files that a network's file system may hold up: the job waits some seconds for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.mounts import is_remote
from mlflow_perf.core.originals import os
from mlflow_perf.core.safe_log import get_logger

P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[Any, P], T]

_PATIENCE_SEC = 5.0

_log = get_logger(__name__)


class FilePatience:
    """Does work on the files of a folder, and waits some seconds for it.

    Where a network's file system does not answer, the work goes on in a thread of its own, and none
    is begun before that has ended. On a disk of this machine all is done at once.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._may_hang = is_remote(folder)
        self._overdue: BackgroundCall[Any] | None = None
        self._pid = os.getpid()
        self._is_told = False

    def do(self, work: Callable[[], T], otherwise: T) -> T:
        """Do it and return what it returns, or something else where it cannot be done in time."""
        # A forked child does not have the thread.
        overdue = self._overdue if self._pid == os.getpid() else None
        if overdue is not None and not overdue.done_within(0.0):
            return otherwise
        try:
            if not self._may_hang:
                return work()
            try:
                doing = BackgroundCall(work, name="files")
            except RuntimeError as error:
                if is_from_handler(error):
                    raise
                return work()  # no more threads, or the interpreter ends
            if doing.done_within(_PATIENCE_SEC):
                return doing.result(0.0)
        except OSError as error:
            if is_from_handler(error):
                raise
            _log.debug("%s cannot be used: %s", self._folder, error)
            return otherwise
        self._overdue, self._pid = doing, os.getpid()
        if not self._is_told:
            self._is_told = True
            _log.warning(
                "The file system of the crash-safe journals in %s does not answer: the job does "
                "not wait for it. While that lasts, a kill could lose what was measured.",
                self._folder,
            )  # fmt: skip
        return otherwise


@functools.cache
def find_patience(folder: Path) -> FilePatience:
    """Return that of a folder, whose journals are all held up when one is."""
    return FilePatience(folder)


def patiently(otherwise: T) -> Callable[[Method[P, T]], Method[P, T]]:
    """Return a decorator for methods of an object that has a `FilePatience` as its `patience`.

    Args:
        otherwise: What the method returns where it is not done in time.
    """

    def decorate(method: Method[P, T]) -> Method[P, T]:
        @functools.wraps(method)
        def call(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
            patience: FilePatience = self.patience
            return patience.do(lambda: method(self, *args, **options), otherwise)

        return call

    return decorate
