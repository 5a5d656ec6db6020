"""Work Queue's transaction log: its tasks and workers.

May import spans.store, spans.importers.lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mlflow_perf.spans.importers.lines import UNENDED, scope_of, wording_of
from mlflow_perf.spans.store import Key, Store

__all__ = ["WorkQueueImporter", "import_transactions"]

_TASK = "workqueue.task"
_WORKER = "workqueue.worker"
# It takes in the rest of the line: to search there for the next one takes as long as all the rest.
_LINE = re.compile(
    rb"^(\d{1,18}) \d+ (TASK|TRANSFER|WORKER) (\S+) (\S+)(?:[^\S\n]+(\S+))?[^\n]*\n?", re.MULTILINE
)
_HEAD = re.compile(rb"^\d{16} \d+ (?:MANAGER|TASK|WORKER|TRANSFER|CATEGORY) \S", re.MULTILINE)
_LEGEND = b"# time manager_pid "
# Lines that tell of the manager and of categories, not of tasks or workers.
_OTHER = re.compile(rb"^(?:#|[ \t]*\n|\d+ \d+ (?:MANAGER|CATEGORY) )", re.MULTILINE)
_TRANSFERS = {b"INPUT": b"TRANSFER_INPUT", b"OUTPUT": b"TRANSFER_OUTPUT"}
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
        self._tasks: list[int] = []
        self._times: list[int] = []
        self._events: list[bytes] = []
        self._workers: list[tuple[bytes, int, bytes]] = []
        self._worker_at: dict[bytes, bytes] = {}
        self._ran_on: dict[tuple[bytes, int], None] = {}

    def read(self, part: bytes) -> None:
        """Read some whole lines."""
        # Lists are built whole: a call for each of a million lines takes three times as long.
        rows = _LINE.findall(part)
        for time, kind, worker, word, event in rows:
            if kind == b"WORKER":
                self._worker(int(time), worker, word, event)
        found = [row for row in rows if row[1] != b"WORKER"]
        try:
            self._add(found)
        except ValueError:
            self._add([row for row in found if self._has_number(row)])
        if part.count(b"\n") > len(rows) + len(_OTHER.findall(part)):
            self._count_others(part)

    def _add(self, rows: list[tuple[bytes, ...]]) -> None:
        """Take the lines of tasks and transfers; a transfer names its task second."""
        ids = [int(a if kind == b"TASK" else b) for _, kind, a, b, _ in rows]
        if max(ids, default=0) >= 1 << 62:
            raise ValueError("a task's number is too large")
        self._tasks += ids
        self._times += [int(row[0]) for row in rows]
        self._events += [
            b if kind == b"TASK" else _TRANSFERS.get(a) or b"TRANSFER_" + a
            for _, kind, a, b, _ in rows
        ]
        self._ran_on |= {
            (self._worker_at.get(row[4], row[4]), task): None
            for row, task in zip(rows, ids, strict=True)
            if row[3] == b"RUNNING"
        }

    def write(self, store: Store, scope: int) -> dict[Key, int]:
        """Store what was read; return the number of each task's span."""
        tasks = store.add_spans(_TASK, scope, set(self._tasks))
        types = {event: store.string(_text(event)) for event in set(self._events)}
        store.progress("events", 0.6)
        store.add_events(
            [tasks[task] for task in self._tasks],
            self._times,
            [types[event] for event in self._events],
        )
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
        store.add_subspans(
            (workers[_text(worker)], tasks[task], task)
            for worker, task in self._ran_on
            if _text(worker) in workers
        )

    def _count_others(self, part: bytes) -> None:
        for line in part.removesuffix(b"\n").split(b"\n"):
            if not _LINE.match(line) and not _OTHER.match(line + b"\n"):
                self.unread[wording_of(line)] += 1


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
