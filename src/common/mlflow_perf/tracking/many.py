"""Reading the documents of many nodes in several processes. Imports the document.

Most of the time that a thousand documents take goes into parsing their JSON, which keeps Python's
lock: threads do not help. What comes back from a process is packed, because unpickling a list of
numbers would take as long as parsing it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

from mlflow_perf.model.document import PerfDocument

__all__ = ["Read", "default_processes", "read_all"]

_log = logging.getLogger(__name__)

Read = Callable[[Path], PerfDocument]
"""Reads one file; must be a function that another process can import by its name."""

_FEW_FILES = 64  # a process takes as long to start as these take to read
_FILES_PER_TASK = 8
_TASKS_PER_PROCESS = 3
_MOST_PROCESSES = 8


def default_processes() -> int:
    """Return how many processes are worth it on this machine."""
    return min(_MOST_PROCESSES, os.cpu_count() or 1)


def read_all(files: Sequence[Path], read: Read, *, processes: int) -> Iterator[PerfDocument]:
    """Yield the documents of files, in their order, with few of them in memory at a time.

    Columns are numpy arrays where another process read them.

    Args:
        files: What to read.
        read: Reads one of them; what it raises is raised here.
        processes: How many to read in, at most; with 1, or few files, all are read in this one.
    """
    if processes <= 1 or len(files) < _FEW_FILES:
        yield from map(read, files)
        return
    done = 0
    try:
        for document in _read_in(files, read, processes):
            yield document
            done += 1
    except (BrokenProcessPool, OSError, PermissionError) as error:
        # Where no process may be started or one was killed, this one reads what is left.
        _log.debug("Reading in processes of their own does not work here: %s", error)
        yield from map(read, files[done:])


def _read_in(files: Sequence[Path], read: Read, processes: int) -> Iterator[PerfDocument]:
    # A forked child would inherit the locks of the threads that MLflow and numpy run here.
    context = multiprocessing.get_context("spawn")
    chunks = [files[i : i + _FILES_PER_TASK] for i in range(0, len(files), _FILES_PER_TASK)]
    waiting: deque[Future[list[PerfDocument]]] = deque()
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for chunk in chunks:
            if len(waiting) >= processes * _TASKS_PER_PROCESS:
                yield from waiting.popleft().result()
            waiting.append(pool.submit(partial(_read_some, read), chunk))
        while waiting:
            yield from waiting.popleft().result()


def _read_some(read: Read, files: Sequence[Path]) -> list[PerfDocument]:
    return [_packed(read(file)) for file in files]


def _packed(document: PerfDocument) -> PerfDocument:
    """Return a document whose columns are arrays: a tenth of a list to hand to another process."""
    import numpy as np

    for node in document.nodes.values():
        columns: Any = {k: np.array(v, dtype=np.float64) for k, v in node.reports.items()}
        node.reports = columns
    return document
