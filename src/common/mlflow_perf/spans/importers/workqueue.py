"""Work Queue's transaction log: its tasks and workers.

May import spans.bulk, spans.store, spans.importers.lines and workqueue_lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mlflow_perf.spans.database.bulk import Ints, concatenate, distinct, distinct_rows
from mlflow_perf.spans.database.store import Key, Store
from mlflow_perf.spans.importers.lines import UNENDED, scope_of, wording_of
from mlflow_perf.spans.importers.workqueue_lines import take_apart

__all__ = ["WorkQueueImporter", "import_transactions"]

_TASK = "workqueue.task"
_WORKER = "workqueue.worker"
_LINE = re.compile(rb"(\d{1,18}) \d+ (TASK|TRANSFER|WORKER) (\S+) (\S+)(?:\s+(\S+))?")
_HEAD = re.compile(rb"^\d{16} \d+ (?:MANAGER|TASK|WORKER|TRANSFER|CATEGORY) \S", re.MULTILINE)
_LEGEND = b"# time manager_pid "
# Lines that tell of the manager and of categories, not of tasks or workers.
_OTHER = re.compile(rb"^(?:#|[ \t]*\n|\d+ \d+ (?:MANAGER|CATEGORY) )", re.MULTILINE)
_PART_BYTES = 1 << 22
_DIGITS = 18


class WorkQueueImporter:
    """Imports a transaction log on its own."""

    name = "workqueue"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Say whether its first lines are a transaction log's."""
        return head.startswith(_LEGEND) or bool(source.is_file() and _HEAD.search(head[:2000]))

    def load(self, source: Path, store: Store) -> None:
        """Import the tasks' states and transfers, and the workers' comings and goings."""
        import_transactions(source, store)


def import_transactions(source: Path, store: Store) -> dict[Key, int]:
    """Import a transaction log.

    Returns:
        The number of each task's span, by its Work Queue task id.
    """
    with source.open("rb") as file:
        scope = store.scope(scope_of("workqueue", Path("transaction_log"), file.read(1 << 16)))
    reader = _Reader()
    for part, share in _parts(source, reader.unread):
        store.progress(source.name, share / 2)
        reader.read(part)
    for wording, count in reader.unread.items():
        store.not_read(wording, count)
    return reader.write(store, scope)


class _Reader:
    """What the lines say, gathered until the spans have their numbers."""

    def __init__(self) -> None:
        self.unread: Counter[str] = Counter()
        # Columns of the time, the task, and the number of the event's word.
        self._found: list[Ints] = []
        self._words: dict[bytes, int] = {}
        self._workers: list[tuple[bytes, int, bytes]] = []
        self._worker_at: dict[bytes, bytes] = {}
        # The workers that tasks ran on, and columns of the place of one there and of the task.
        self._runners: dict[bytes, int] = {}
        self._ran_on: list[Ints] = []

    def read(self, part: bytes) -> None:
        """Read some whole lines."""
        lines = take_apart(part)
        words = np.array([self._word(word) for word in lines.words], dtype=np.int64)
        self._found.append(np.stack([lines.time, lines.task, words[lines.event]]))
        rows = []
        for line in lines.others:
            if match := _LINE.match(line):
                rows.append(match.groups())
            elif not _OTHER.match(line + b"\n"):
                self.unread[wording_of(line)] += 1
        for time, kind, worker, word, event in rows:
            if kind == b"WORKER":
                self._worker(int(time), worker, word, event or b"")
        for row in rows:
            if row[1] != b"WORKER" and self._has_number(row):
                self._add(row)
        workers = [self._worker_number(address) for address in lines.addresses]
        on = np.array(workers, dtype=np.int64)[lines.address]
        self._ran_on.append(np.stack([on, lines.started]))

    def _add(self, row: tuple[bytes, ...]) -> None:
        """Take a line of a task or a transfer, of another shape; a transfer names its task last."""
        time, kind, first, second, address = row
        if kind == b"TRANSFER":
            found = int(time), int(second), self._word(b"TRANSFER_" + first)
        else:
            found = int(time), int(first), self._word(second)
        self._found.append(np.array(found, dtype=np.int64)[:, None])
        if kind == b"TASK" and second == b"RUNNING":
            on = self._worker_number(address or b"")
            self._ran_on.append(np.array([[on], [int(first)]]))

    def _worker_number(self, address: bytes) -> int:
        """Return the number of the worker that is at an address by now."""
        worker = self._worker_at.get(address, address)
        return self._runners.setdefault(worker, len(self._runners))

    def _word(self, word: bytes) -> int:
        return self._words.setdefault(word, len(self._words))

    def write(self, store: Store, scope: int) -> dict[Key, int]:
        """Store what was read; return the number of each task's span."""
        time, task, word = concatenate(self._found)
        numbers = distinct(task)
        tasks = store.add_spans(_TASK, scope, numbers.tolist())
        spans = np.array([tasks[number] for number in numbers.tolist()], dtype=np.int64)
        types = np.array([store.string(_text(w)) for w in self._words], dtype=np.int64)
        store.progress("events", 0.6)
        if len(task):
            events = np.stack([spans[np.searchsorted(numbers, task)], time, types[word]])
            store.add_event_table(events)
        self._write_workers(store, scope, tasks)
        return tasks

    def _has_number(self, row: tuple[bytes, ...]) -> bool:
        task = row[2] if row[1] == b"TASK" else row[3]
        good = task.isdigit() and len(task) <= _DIGITS
        if not good:
            self.unread[wording_of(row[1] + b" " + task)] += 1
        return good

    def _worker(self, time: int, worker: bytes, word: bytes, event: bytes) -> None:
        if word == b"RESOURCES":
            event = word
        else:
            self._worker_at[word] = worker
        self._workers.append((worker, time, event))

    def _write_workers(self, store: Store, scope: int, tasks: dict[Key, int]) -> None:
        hosts = {worker: address for address, worker in self._worker_at.items()}
        about = {
            _text(w): {"name": _text(w), "host": _text(hosts.get(w, b"")).partition(":")[0] or None}
            for w, _, _ in self._workers
        }
        workers = store.add_spans(_WORKER, scope, about)
        store.add_events(
            [workers[_text(w)] for w, _, _ in self._workers],
            [time for _, time, _ in self._workers],
            [store.string(_text(event)) for _, _, event in self._workers],
        )
        runners = [workers.get(_text(worker)) for worker in self._runners]
        pairs = distinct_rows(np.concatenate([np.zeros((2, 0), dtype=np.int64), *self._ran_on], 1))
        store.add_subspans(
            (span, tasks[task], task)
            for worker, task in pairs.T.tolist()
            if (span := runners[worker]) is not None
        )


def _parts(source: Path, unread: Counter[str]) -> Iterator[tuple[bytes, float]]:
    """Yield a file in parts that end where a line does, with the share of the file behind each.

    A last line that is not ended is counted, not read: it is being written.
    """
    size = max(1, source.stat().st_size)
    with source.open("rb") as file:
        while part := file.read(_PART_BYTES):
            part += file.readline()
            if not part.endswith(b"\n"):
                unread[UNENDED] += 1
                part = part[: part.rfind(b"\n") + 1]
            yield part, file.tell() / size


def _text(word: bytes) -> str:
    return word.decode("utf-8", "replace")
