"""The logs of Parsl's HighThroughputExecutor: interchange, managers, workers; text and JSON.

The logs of the interchange and the managers name single tasks with `worker_debug=True` only; those
of the workers always do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlflow_perf.spans.database.store import Key, Store
from mlflow_perf.spans.importers.lines import Log, strip_numbers
from mlflow_perf.spans.importers.local_time import Offset, offsets_of_log

__all__ = ["find_htex_labels", "import_htex"]

_PREFIX = "parsl.executor.htex"
_KINDS = ("log", "jsonlog")
_NUMBER = re.compile(rb"\d+")
_REGISTERED = re.compile(rb"[Rr]egistration info for manager b?'([^']+)'.*?'hostname': '([^']+)'")


class _Wording(NamedTuple):
    """A fixed wording, the pattern of its lines, and the event of the tasks that they name."""

    words: bytes
    pattern: re.Pattern[bytes]
    event: str


# The last entries are those of Parsl before 2023.
_WORDINGS = {
    "interchange": (
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
    ),
    "manager": (
        _Wording(
            b"Got executor tasks: [",
            re.compile(rb"Got executor tasks: \[([\d, ]*)\]"),
            "manager_got_task",
        ),
        _Wording(b"Got tasks: [", re.compile(rb"Got tasks: \[([\d, ]*)\]"), "manager_got_task"),
    ),
    "worker": (
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
        _Wording(b"Received task ", re.compile(rb"Received task (\d+)"), "worker_received_task"),
        _Wording(b"Completed task ", re.compile(rb"Completed task (\d+)"), "worker_completed_task"),
        _Wording(
            b"All processing finished for task ",
            re.compile(rb"finished for task (\d+)"),
            "worker_all_finished_task",
        ),
    ),
}


def find_htex_labels(run: Path) -> set[str]:
    """Return the labels of the executors in a run's folder that have an interchange's log."""
    return {p.parent.name for kind in _KINDS for p in run.glob(f"*/interchange.{kind}")}


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
    for path in _existing_logs(folder, "interchange"):
        with Log(path, offsets) as log:
            for line in log.find(b"egistration info for manager"):
                if found := _REGISTERED.search(line):
                    hosts[found[1].decode()] = found[2].decode("utf-8", "replace")
        executor.read_log(path, "interchange", offsets)
    names = [f"{name}.{kind}" for kind in _KINDS for name in ("manager", "worker_*")]
    managers = {path.parent for name in names for path in folder.rglob(name)}
    for manager in sorted(managers):
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
        for path in _existing_logs(folder, "manager"):
            shown = offsets_of_log(path) or self._offsets
            tasks = self.read_log(path, "manager", shown, host=host)
            store.add_subspans((manager, span, task) for task, span in tasks.items())
        for path in [p for kind in _KINDS for p in sorted(folder.glob(f"worker_*.{kind}"))]:
            name = path.stem
            worker = store.span(
                f"{_PREFIX}.worker", self._scope, f"{key}/{name}", name=name, host=host
            )
            store.add_subspans([(manager, worker, name)])
            shown = offsets_of_log(path) or self._offsets
            tasks = self.read_log(path, "worker", shown, host=host)
            store.add_subspans((worker, span, task) for task, span in tasks.items())

    def read_log(
        self, path: Path, level: str, offsets: Sequence[Offset], *, host: str | None = None
    ) -> dict[str, int]:
        """Read one log; return the span of each task that it names."""
        store = self._store
        found: list[tuple[str, int, str]] = []
        with Log(path, offsets) as log:
            log.count_unended(store)
            for words, pattern, event in _WORDINGS[level]:
                for line in log.find(words):
                    match, time = pattern.search(line), log.time_us(line)
                    if match is None or time is None:
                        store.not_read(strip_numbers(line))
                        continue
                    found += [(n.decode(), time, event) for n in _NUMBER.findall(match[1])]
            if not found and log.size and level != "worker":
                store.not_read(f"{path.name}: no line about a task in it (worker_debug is off?)")
        keys: dict[str, Key] = {task: f"{self._label}/{task}" for task, _, _ in found}
        about = {key: {"host": host} for key in keys.values()}
        numbers = store.add_spans(f"{_PREFIX}.{level}.task", self._scope, about)
        spans = {task: numbers[key] for task, key in keys.items()}
        store.add_events(
            [spans[task] for task, _, _ in found],
            [time for _, time, _ in found],
            [store.string(event) for _, _, event in found],
        )
        self._levels[level] |= spans
        return spans

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


def _existing_logs(folder: Path, name: str) -> list[Path]:
    return [p for kind in _KINDS if (p := folder / f"{name}.{kind}").is_file()]
