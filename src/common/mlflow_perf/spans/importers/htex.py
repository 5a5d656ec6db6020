"""The logs of Parsl's HighThroughputExecutor: interchange, managers, workers; text and JSON.

May import spans.localtime, spans.store, spans.importers.lines. Interchange and managers tell of
single tasks with `worker_debug=True` only; workers always do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mlflow_perf.spans.database.store import Key, Store
from mlflow_perf.spans.importers.lines import Log, wording_of
from mlflow_perf.spans.importers.local_time import Offset, offsets_of_log

__all__ = ["htex_folders", "import_htex"]

_PREFIX = "parsl.executor.htex"
_KINDS = ("log", "jsonlog")
_NUMBER = re.compile(rb"\d+")
_REGISTERED = re.compile(rb"[Rr]egistration info for manager b?'([^']+)'.*?'hostname': '([^']+)'")


class _Wording(NamedTuple):
    """A fixed wording, how the line goes on, and the event that it tells of."""

    words: bytes
    pattern: re.Pattern[bytes]
    event: str


_INTERCHANGE = (
    _Wording(
        b"Sent tasks: [",
        re.compile(rb"Sent tasks: \[([\d, ]*)\] to manager"),
        "interchange_to_manager",
    ),
    _Wording(
        b"Removing task ",
        re.compile(rb"Removing task (\d+) from manager"),
        "interchange_removing_task",
    ),
)
_MANAGER = (
    _Wording(
        b"Got executor tasks: [",
        re.compile(rb"Got executor tasks: \[([\d, ]*)\]"),
        "manager_got_task",
    ),
    # Parsl before 2023.
    _Wording(b"Got tasks: [", re.compile(rb"Got tasks: \[([\d, ]*)\]"), "manager_got_task"),
)
_WORKER = (
    _Wording(
        b"Received executor task ",
        re.compile(rb"Received executor task (\d+)"),
        "worker_received_task",
    ),
    _Wording(
        b"Completed executor task ",
        re.compile(rb"Completed executor task (\d+)"),
        "worker_completed_task",
    ),
    _Wording(
        b"All processing finished for executor task ",
        re.compile(rb"finished for executor task (\d+)"),
        "worker_all_finished_task",
    ),
    # Parsl before 2023.
    _Wording(b"Received task ", re.compile(rb"Received task (\d+)"), "worker_received_task"),
    _Wording(b"Completed task ", re.compile(rb"Completed task (\d+)"), "worker_completed_task"),
    _Wording(
        b"All processing finished for task ",
        re.compile(rb"finished for task (\d+)"),
        "worker_all_finished_task",
    ),
)


def htex_folders(run: Path) -> set[str]:
    """Return the labels of the executors in a run's folder that have an interchange's log."""
    return {p.parent.name for kind in _KINDS for p in run.glob(f"*/interchange.{kind}")}


def import_htex(
    run: Path, label: str, store: Store, *, scope: int, offsets: Sequence[Offset]
) -> dict[str, int]:
    """Import the logs of one executor.

    Args:
        run: The run's folder.
        label: The executor's label, and its folder within.
        store: Where to.
        scope: The run's scope.
        offsets: How far the run's local times are ahead of UTC, for logs without Unix times.

    Returns:
        The number of the topmost span of each task, by the executor's task id.
    """
    executor = _Executor(run / label, label, store, scope)
    executor.read_interchange(offsets)
    for folder in executor.managers():
        executor.read_manager(folder, offsets)
    return executor.bind()


class _Executor:
    """The spans of one executor: a task has one at each level that tells of it."""

    def __init__(self, folder: Path, label: str, store: Store, scope: int) -> None:
        self._folder = folder
        self._label = label
        self._store = store
        self._scope = scope
        self._hosts: dict[str, str] = {}
        self._levels: dict[str, dict[Key, int]] = {"interchange": {}, "manager": {}, "worker": {}}

    def managers(self) -> list[Path]:
        """Return the folders of the managers, below those of their blocks."""
        logs = [p for kind in _KINDS for p in self._folder.rglob(f"manager.{kind}")]
        workers = [p for kind in _KINDS for p in self._folder.rglob(f"worker_*.{kind}")]
        return sorted({p.parent for p in logs + workers})

    def read_interchange(self, offsets: Sequence[Offset]) -> None:
        for path in _logs(self._folder, "interchange"):
            with Log(path, offsets) as log:
                for line in log.find(b"egistration info for manager"):
                    if found := _REGISTERED.search(line):
                        self._hosts[found[1].decode()] = found[2].decode("utf-8", "replace")
            self._read(path, "interchange", _INTERCHANGE, offsets)

    def read_manager(self, folder: Path, offsets: Sequence[Offset]) -> None:
        """Read the log of a manager and those of its workers, each a span with its tasks in it."""
        host = self._hosts.get(folder.name)
        # A block's name, where the folder lies in one: manager names are unique without it.
        about = {"name": folder.name, "host": host, "block": folder.parent.name}
        manager = self._store.span(
            f"{_PREFIX}.manager", self._scope, f"{self._label}/{folder.name}", **about
        )
        for path in _logs(folder, "manager"):
            shown = offsets_of_log(path) or offsets
            for task, span in self._read(path, "manager", _MANAGER, shown, host=host).items():
                self._store.add_subspans([(manager, span, task)])
        for path in [p for kind in _KINDS for p in sorted(folder.glob(f"worker_*.{kind}"))]:
            self._read_worker(path, manager, offsets, host)

    def _read_worker(
        self, path: Path, manager: int, offsets: Sequence[Offset], host: str | None
    ) -> None:
        name = path.stem
        key = f"{self._label}/{path.parent.name}/{name}"
        worker = self._store.span(f"{_PREFIX}.worker", self._scope, key, name=name, host=host)
        self._store.add_subspans([(manager, worker, name)])
        shown = offsets_of_log(path) or offsets
        spans = self._read(path, "worker", _WORKER, shown, host=host)
        self._store.add_subspans((worker, span, task) for task, span in spans.items())

    def bind(self) -> dict[str, int]:
        """Put each task's spans below each other; return the topmost of each."""
        topmost: dict[str, int] = {}
        pairs: list[tuple[int, int, Key]] = []
        below: dict[Key, int] = {}
        for level in self._levels.values():
            pairs += [(below[key], span, _task(key)) for key, span in level.items() if key in below]
            below |= level
            for key, span in level.items():
                topmost.setdefault(_task(key), span)
        self._store.add_subspans(pairs)
        return topmost

    def _read(
        self,
        path: Path,
        level: str,
        wordings: Sequence[_Wording],
        offsets: Sequence[Offset],
        *,
        host: str | None = None,
    ) -> dict[str, int]:
        """Read one log; return the span of each task that it tells of."""
        store = self._store
        with Log(path, offsets) as log:
            log.count_unended(store)
            found = list(_tasks(log, wordings, store))
            if not found and log.size and level != "worker":
                store.not_read(f"{path.name}: no line about a task in it (worker_debug is off?)")
        keys: dict[Key, dict[str, str | None]] = {
            f"{self._label}/{task}": {"host": host} for task, _, _ in found
        }
        spans = store.add_spans(f"{_PREFIX}.{level}.task", self._scope, keys)
        types = {event: store.string(event) for event in {e for _, _, e in found}}
        store.add_events(
            [spans[f"{self._label}/{task}"] for task, _, _ in found],
            [time for _, time, _ in found],
            [types[event] for _, _, event in found],
        )
        here = {key: spans[key] for key in keys}
        self._levels[level] |= here
        return {_task(key): span for key, span in here.items()}


def _tasks(log: Log, wordings: Sequence[_Wording], store: Store) -> Iterator[tuple[str, int, str]]:
    """Yield the executor's task id, the Unix microseconds and the event of each line on tasks."""
    for words, pattern, event in wordings:
        for line in log.find(words):
            match, time = pattern.search(line), log.time_us(line)
            if match is None or time is None:
                store.not_read(wording_of(line))
                continue
            for task in _NUMBER.findall(match[1]):
                yield task.decode(), time, event


def _logs(folder: Path, name: str) -> list[Path]:
    return [p for kind in _KINDS if (p := folder / f"{name}.{kind}").is_file()]


def _task(key: Key) -> str:
    return str(key).rpartition("/")[2]
