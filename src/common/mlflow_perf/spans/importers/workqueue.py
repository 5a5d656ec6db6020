"""Work Queue's transaction log: its tasks and workers."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from itertools import count
from pathlib import Path

import numpy as np

from mlflow_perf.spans.database.bulk import Ints, concatenate, distinct
from mlflow_perf.spans.database.store import Key, Store
from mlflow_perf.spans.importers.base import read_head
from mlflow_perf.spans.importers.lines import UNENDED, make_log_scope, strip_numbers

_HEAD = re.compile(rb"^\d{16} \d+ (?:MANAGER|TASK|WORKER|TRANSFER|CATEGORY) \S", re.MULTILINE)
_LEGEND = b"# time manager_pid "
# Comments, blank lines, and lines about the manager and its categories.
_IGNORED = re.compile(rb"#|\s*$|\d+ \d+ (?:MANAGER|CATEGORY) ")
_PART_BYTES = 1 << 22
# Numbers of so many digits need not fit in 64 bits.
_DIGITS = 19


class WorkQueueImporter:
    """Imports a transaction log on its own."""

    name = "workqueue"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether its first lines are those of a transaction log."""
        return head.startswith(_LEGEND) or bool(source.is_file() and _HEAD.search(head[:2000]))

    def load(self, source: Path, store: Store) -> None:
        """Import the tasks' states and transfers, and when workers connect and disconnect."""
        import_transactions(source, store)


def import_transactions(source: Path, store: Store) -> dict[Key, int]:
    """Import a transaction log.

    Returns:
        The number of each task's span, by its Work Queue task id.
    """
    log = _Log()
    size = max(1, source.stat().st_size)
    head = read_head(source)
    scope = store.scope(make_log_scope("workqueue", Path("transaction_log"), head))
    with source.open("rb") as file:
        while part := file.read(_PART_BYTES):
            part += file.readline()
            if not part.endswith(b"\n"):
                store.not_read(UNENDED)
                part = part[: part.rfind(b"\n") + 1]
            store.progress(source.name, file.tell() / size / 2)
            log.read(part, store)
    return log.write(store, scope)


class _Log:
    """The events of a log, gathered until their spans have numbers."""

    def __init__(self) -> None:
        # Columns of the time, the task, and the number of the event in `_words`.
        self._events: list[Ints] = []
        self._words: dict[bytes, int] = defaultdict(count().__next__)
        self._workers: list[tuple[str, int, str]] = []
        self._worker_at: dict[bytes, str] = {}
        self._ran_on: list[tuple[str, int]] = []

    def read(self, part: bytes, store: Store) -> None:
        """Read some whole lines: `<time> <process> <kind> <word> <word> …`."""
        times, tasks, events = array("q"), array("q"), array("q")
        for line in part[:-1].split(b"\n"):
            words = line.split(None, 6)
            time, kind = (words[0], words[2]) if len(words) > 4 else (b"", b"")
            if kind == b"TASK":
                task, event = words[3], words[4]
            elif kind == b"TRANSFER":
                task, event = words[4], b"TRANSFER_" + words[3]
            else:
                task, event = b"0", b""
            is_number = time.isdigit() and task.isdigit() and len(time) < _DIGITS > len(task)
            if event and is_number:
                times.append(int(time))
                tasks.append(int(task))
                events.append(self._words[event])
                if event == b"RUNNING" and len(words) > 5 and words[5] in self._worker_at:
                    self._ran_on.append((self._worker_at[words[5]], int(task)))
            elif kind == b"WORKER" and is_number:
                # `WORKER <id> RESOURCES …`, or `WORKER <id> <address> CONNECTION` and the like.
                worker, word = _decode(words[3]), words[4]
                if word != b"RESOURCES":
                    self._worker_at[word] = worker
                    word = words[5] if len(words) > 5 else b""
                self._workers.append((worker, int(time), _decode(word)))
            elif not _IGNORED.match(line):
                store.not_read(strip_numbers(line))
        self._events.append(np.stack([times, tasks, events]))

    def write(self, store: Store, scope: int) -> dict[Key, int]:
        """Store the spans and events; return the number of each task's span."""
        time, task, word = concatenate(self._events)
        numbers = distinct(task)
        tasks = store.add_spans("workqueue.task", scope, numbers.tolist())
        spans = np.array([tasks[number] for number in numbers.tolist()], dtype=np.int64)
        types = np.array([store.string(_decode(w)) for w in self._words], dtype=np.int64)
        store.progress("events", 0.6)
        if len(task):
            owner = spans[np.searchsorted(numbers, task)]
            store.add_event_table(np.stack([owner, time, types[word]]))
        hosts = {worker: _decode(address) for address, worker in self._worker_at.items()}
        about = {
            worker: {"name": worker, "host": hosts.get(worker, "").partition(":")[0] or None}
            for worker, _, _ in self._workers
        }
        workers = store.add_spans("workqueue.worker", scope, about)
        store.add_events((workers[worker], time, event) for worker, time, event in self._workers)
        ran_on = sorted({(workers[worker], tasks[task], task) for worker, task in self._ran_on})
        store.add_subspans(ran_on)
        return tasks


def _decode(word: bytes) -> str:
    return word.decode("utf-8", "replace")
