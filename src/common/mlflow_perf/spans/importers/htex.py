"""The logs of Parsl's HighThroughputExecutor: interchange, managers, workers; text and JSON.

The logs of the interchange and the managers name single tasks with `worker_debug=True` only; those
of the workers always do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.spans.database.store import Key, Store
from mlflow_perf.spans.importers.lines import Log
from mlflow_perf.spans.importers.local_time import Offset

_PREFIX = "parsl.executor.htex"
_NUMBER = re.compile(rb"\d+")
_REGISTERED = re.compile(rb"[Rr]egistration info for manager b?'([^']+)'.*?'hostname': '([^']+)'")

# For each level: a fixed wording, the pattern of what follows it with the tasks' numbers, and the
# event of those tasks. The last entries are those of Parsl before 2023.
_WORDINGS = {
    "interchange": (
        (b"Sent tasks: [", rb"([\d, ]*)\] to manager", "interchange_to_manager"),
        (b"Removing task ", rb"(\d+) from manager", "interchange_removing_task"),
    ),
    "manager": (
        (b"Got executor tasks: [", rb"([\d, ]*)\]", "manager_got_task"),
        (b"Got tasks: [", rb"([\d, ]*)\]", "manager_got_task"),
    ),
    "worker": (
        (b"Received executor task ", rb"(\d+)", "worker_received_task"),
        (b"Completed executor task ", rb"(\d+)", "worker_completed_task"),
        (b"All processing finished for executor task ", rb"(\d+)", "worker_all_finished_task"),
        (b"Received task ", rb"(\d+)", "worker_received_task"),
        (b"Completed task ", rb"(\d+)", "worker_completed_task"),
        (b"All processing finished for task ", rb"(\d+)", "worker_all_finished_task"),
    ),
}


def find_htex_labels(run: Path) -> set[str]:
    """Return the labels of the executors in a run's folder that have an interchange's log."""
    return {log.parent.name for log in find_logs(run, "*/interchange")}


def find_logs(folder: Path, name: str) -> list[Path]:
    """Return the text and JSON logs of a name, which may be a pattern, in a folder."""
    return sorted(p for kind in ("log", "jsonlog") for p in folder.glob(f"{name}.{kind}"))


def import_htex(
    run: Path, label: str, store: Store, *, scope: int, offsets: Sequence[Offset]
) -> dict[str, int]:
    """Import the logs of one executor.

    Args:
        run: The run's folder.
        label: The executor's label, which is the name of its folder.
        store: The store.
        scope: The run's scope.
        offsets: How far the run's local times are ahead of UTC, for logs without Unix times.

    Returns:
        The number of the topmost span of each task, by the executor's task id.
    """
    executor = _Executor(label, store, scope, offsets)
    folder = run / label
    hosts = {}
    for path in find_logs(folder, "interchange"):
        with Log(path, offsets) as log:
            for line in log.find(b"egistration info for manager"):
                if found := _REGISTERED.search(line):
                    hosts[found[1].decode()] = found[2].decode("utf-8", "replace")
        executor.read_log(path, "interchange")
    logs = find_logs(folder, "**/manager") + find_logs(folder, "**/worker_*")
    for manager in sorted({log.parent for log in logs}):
        executor.read_manager(manager, hosts.get(manager.name))
    return executor.nest_tasks()


class _Executor:
    """The spans of one executor: a task has one for each level whose logs name it."""

    def __init__(self, label: str, store: Store, scope: int, offsets: Sequence[Offset]) -> None:
        self._label = label
        self._store = store
        self._scope = scope
        self._offsets = offsets
        self._levels: dict[str, dict[str, int]] = {"interchange": {}, "manager": {}, "worker": {}}

    def read_manager(self, folder: Path, host: str | None) -> None:
        """Read the logs of a manager and its workers, each a span with its tasks in it."""
        store, key = self._store, f"{self._label}/{folder.name}"
        # The folder of a manager may lie in the folder of its block.
        about = {"name": folder.name, "host": host, "block": folder.parent.name}
        manager = store.span(f"{_PREFIX}.manager", self._scope, key, **about)
        for path in find_logs(folder, "manager"):
            self.read_log(path, "manager", inside=manager, host=host)
        for path in find_logs(folder, "worker_*"):
            name, kind = path.stem, f"{_PREFIX}.worker"
            worker = store.span(kind, self._scope, f"{key}/{name}", name=name, host=host)
            store.add_subspans([(manager, worker, name)])
            self.read_log(path, "worker", inside=worker, host=host)

    def read_log(
        self, path: Path, level: str, *, inside: int | None = None, host: str | None = None
    ) -> None:
        """Read one log: its tasks become spans, which are part of the span `inside`."""
        store = self._store
        found: list[tuple[str, int, str]] = []
        with Log(path, self._offsets) as log:
            log.count_unended(store)
            for words, rest, event in _WORDINGS[level]:
                pattern = re.compile(re.escape(words) + rest)
                for match, time in log.search(words, pattern, store):
                    found += [(n.decode(), time, event) for n in _NUMBER.findall(match[1])]
            if not found and log.size and level != "worker":
                store.not_read(f"{path.name}: no line about a task in it (worker_debug is off?)")
        keys: dict[str, Key] = {task: f"{self._label}/{task}" for task, _, _ in found}
        about = {key: {"host": host} for key in keys.values()}
        numbers = store.add_spans(f"{_PREFIX}.{level}.task", self._scope, about)
        spans = {task: numbers[key] for task, key in keys.items()}
        store.add_events((spans[task], time, event) for task, time, event in found)
        if inside is not None:
            store.add_subspans((inside, span, task) for task, span in spans.items())
        self._levels[level] |= spans

    def nest_tasks(self) -> dict[str, int]:
        """Make each task's span part of its span of the level above; return the topmost spans."""
        topmost: dict[str, int] = {}
        lowest: dict[str, int] = {}
        for level in self._levels.values():
            self._store.add_subspans(
                [(lowest[task], span, task) for task, span in level.items() if task in lowest]
            )
            lowest |= level
            topmost = level | topmost
        return topmost
