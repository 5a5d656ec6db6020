"""The folder of one Parsl run: `parsl.log` or `parsl.jsonlog`, and the logs of its executors.

This gives the workflow, its tasks and tries, and binds them to the spans of the executors' logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.htex import find_htex_labels, import_htex
from mlflow_perf.spans.importers.lines import Log, make_log_scope, strip_numbers
from mlflow_perf.spans.importers.local_time import Offset, machine_offsets, offsets_of_log
from mlflow_perf.spans.importers.metric_lines import import_metric_lines
from mlflow_perf.spans.importers.workqueue import import_transactions

__all__ = ["ParslRunImporter"]

_LOGS = ("parsl.log", "parsl.jsonlog")
_WORKFLOW, _TASK, _TRY = "parsl.rundir.workflow", "parsl.rundir.task", "parsl.rundir.try"
_WQ_TASK = "parsl.executors.workqueue.executor_task"
_WQ_REMOTE = "parsl.executors.workqueue.executor_task.remote"

_RUN_ID = re.compile(rb"Run id is: ([\w-]+)")
_LAUNCHED = re.compile(
    # Join apps run in Parsl itself and have no executor id. A JSON line continues after a quote.
    rb"Parsl task (\d{1,13}) try (\d{1,4}) launched on executor (.+?)"
    rb'(?: with executor id (\w+))?(?:"|\s*$)'
)
_STATE = re.compile(rb"Task (\d{1,13}) (?:changing state from \w+ to|initializing state to) (\w+)")
_SUBMITTED = re.compile(rb"Task (\d{1,13}) submitted for App (\S+?),? (?:not )?waiting on (.*)")
_NUMBER = re.compile(rb"\b\d{1,13}\b")
# The wordings of three generations of Parsl.
_WQ_SUBMITTED = (
    (
        b"submitted as Work Queue task",
        re.compile(rb"[Tt]ask (\d+) submitted as Work Queue task (\d+)"),
    ),
    (
        b"submitted to Work Queue with",
        re.compile(rb"[Tt]ask (\d+) submitted to Work Queue with \D*(\d+)"),
    ),
    (
        b"submitted to WorkQueue with",
        re.compile(rb"[Tt]ask (\d+) submitted to WorkQueue with id (\d+)"),
    ),
)
_WQ_COMPLETED = re.compile(rb"Completed Work ?Queue task \d+, (?:parsl )?(?:executor )?task (\d+)")
_REMOTE_LINE = re.compile(rb"^(\d{1,12}\.\d+) (.+)$", re.MULTILINE)


class ParslRunImporter:
    """Imports a run's folder, or a single executor's folder."""

    name = "parsl-run"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is a folder with Parsl's main log, or with an executor's logs."""
        if not source.is_dir():
            return False
        return any((source / log).is_file() for log in _LOGS) or any(
            (source / f"interchange.{kind}").is_file() for kind in ("log", "jsonlog")
        )

    def load(self, source: Path, store: Store) -> None:
        """Import the run, its tasks and tries, and the logs of its executors.

        Raises:
            SpansError: The main log holds several runs, whose tasks have the same numbers.
        """
        log = next((source / name for name in _LOGS if (source / name).is_file()), None)
        if log is None:
            with (next(source.glob("interchange.*log"))).open("rb") as file:
                scope = store.scope(make_log_scope("htex", source, file.read(1 << 16)))
            import_htex(source.parent, source.name, store, scope=scope, offsets=[])
            return
        run = _read_main_log(log, store)
        _Writer(source, run, store).write()
        import_metric_lines(log, store, run.scope, run.offsets)


@dataclass
class _Run:
    """The contents of the main log.

    Attributes:
        scope: The scope's number.
        offsets: How far local times are ahead of UTC.
        executors: The executor and its own task id, by task and try.
        states: Task, Unix microseconds and state of each change.
        apps: Name of each task's function.
        needs: Each task with a task that it waited for.
        wq_ids: Work Queue's own task id, by the executor's.
        wq_completed: Executor task and Unix microseconds of each logged completion.
    """

    scope: int
    offsets: list[Offset]
    executors: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    states: list[tuple[int, int, str]] = field(default_factory=list)
    apps: dict[int, str] = field(default_factory=dict)
    needs: list[tuple[int, int]] = field(default_factory=list)
    wq_ids: dict[str, int] = field(default_factory=dict)
    wq_completed: list[tuple[str, int]] = field(default_factory=list)


def _read_main_log(path: Path, store: Store) -> _Run:
    offsets = offsets_of_log(path)
    with Log(path, offsets) as log:
        ids = {m[1].decode() for line in log.find(b"Run id is: ") if (m := _RUN_ID.search(line))}
        if len(ids) > 1:
            raise SpansError(
                f"{path} holds {len(ids)} runs, whose tasks have the same numbers: import its "
                "monitoring.db, or give each run a run folder of its own."
            )
        head = next(log.find(b" "), b"")
        scope = f"parsl:{ids.pop()}" if ids else make_log_scope("parsl", path, head)
        local = re.search(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", head)
        if not offsets and local:
            offsets = log.offsets = machine_offsets(local[0].decode())
        run = _Run(store.scope(scope), offsets)
        store.progress("parsl.log", 0.05)
        for m, _ in _search(log, b" launched on executor ", _LAUNCHED, store):
            label = m[3].decode("utf-8", "replace")
            run.executors[int(m[1]), int(m[2])] = (label, (m[4] or b"").decode())
        for words in (b" changing state from ", b" initializing state to "):
            for m, time in _search(log, words, _STATE, store):
                if time is not None:
                    run.states.append((int(m[1]), time, m[2].decode()))
        for m, _ in _search(log, b" submitted for App ", _SUBMITTED, store):
            task = int(m[1])
            run.apps[task] = m[2].decode("utf-8", "replace")
            # A JSON line continues after its message, with unrelated numbers.
            needs = m[3].split(b'"')[0]
            run.needs += [(task, int(n)) for n in _NUMBER.findall(needs)]
        for words, pattern in _WQ_SUBMITTED:
            for m, _ in _search(log, words, pattern, store):
                run.wq_ids[m[1].decode()] = int(m[2])
        for m, time in _search(log, b"Completed Work", _WQ_COMPLETED, store):
            if time is not None:
                run.wq_completed.append((m[1].decode(), time))
        if not run.executors and not run.states:
            store.not_read(f"{path.name}: no line about a task in it")
    return run


def _search(
    log: Log, words: bytes, pattern: re.Pattern[bytes], store: Store
) -> Iterator[tuple[re.Match[bytes], int | None]]:
    """Yield the match and the time of each line with some words; count lines of another shape."""
    for line in log.find(words):
        match = pattern.search(line)
        if match is None:
            store.not_read(strip_numbers(line))
        else:
            yield match, log.time_us(line)


class _Writer:
    """Stores a run and binds it to its executors' spans."""

    def __init__(self, folder: Path, run: _Run, store: Store) -> None:
        self._folder = folder
        self._run = run
        self._store = store

    def write(self) -> None:
        run, store = self._run, self._store
        workflow = store.span(_WORKFLOW, run.scope, 0)
        ids = {t for t, _ in run.executors} | {t for t, _, _ in run.states} | set(run.apps)
        tasks = store.add_spans(_TASK, run.scope, {t: {"name": run.apps.get(t)} for t in ids})
        tries = store.add_spans(
            _TRY,
            run.scope,
            {t << 16 | a: {"executor": e} for (t, a), (e, _) in run.executors.items()},
        )
        store.add_subspans((workflow, span, task) for task, span in tasks.items())
        store.add_subspans((tasks[t], tries[t << 16 | a], a) for t, a in run.executors)
        store.add_dependencies((tasks[t], tasks[n]) for t, n in run.needs if n in tasks)
        # The run's monitoring database, if it is imported, has told these states already.
        monitored = store.db.execute(
            "SELECT 1 FROM span_row s JOIN string t ON t.id = s.type_id"
            " WHERE t.text = 'parsl.monitoring.workflow' AND s.scope_id = ?",
            (run.scope,),
        )
        if monitored.fetchone() is None:
            store.add_events(
                [tasks[task] for task, _, _ in run.states],
                [time for _, time, _ in run.states],
                [store.string(state) for _, _, state in run.states],
            )
        labels = {label for label, _ in run.executors.values()}
        found: dict[tuple[str, str], int] = {}
        for number, label in enumerate(sorted(labels | find_htex_labels(self._folder))):
            store.progress(label, 0.1 + 0.9 * number / (len(labels) + 1))
            if (self._folder / label / "transaction_log").is_file():
                spans = self._write_work_queue(label)
            elif (self._folder / label).is_dir():
                spans = import_htex(
                    self._folder, label, store, scope=run.scope, offsets=run.offsets
                )
            else:
                continue
            found |= {(label, task): span for task, span in spans.items()}
        store.add_subspans(
            (tries[task << 16 | attempt], found[executor], "executor task")
            for (task, attempt), executor in run.executors.items()
            if executor in found
        )

    def _write_work_queue(self, label: str) -> dict[str, int]:
        """Store an executor's Work Queue log; return its tasks' spans by their executor ids."""
        run, store = self._run, self._store
        wq_spans = import_transactions(self._folder / label / "transaction_log", store)
        known = {e for exe, e in run.executors.values() if exe == label} | set(run.wq_ids)
        spans = store.add_spans(_WQ_TASK, run.scope, {f"{label}/{e}": {} for e in known})
        found = {e: spans[f"{label}/{e}"] for e in known}
        completed = [(found[e], time) for e, time in run.wq_completed if e in found]
        types = [store.string("executor_completed")] * len(completed)
        store.add_events([s for s, _ in completed], [t for _, t in completed], types)
        bound = {e: wq_spans[w] for e, w in run.wq_ids.items() if w in wq_spans}
        if not run.wq_ids and len(found) == len(wq_spans):
            # Today's Parsl does not log the pairs. Both sides number their tasks in the order of
            # submission, the executor from 0 and Work Queue from 1.
            numbers = {e: int(e) + 1 for e in found if e.isdigit()}
            bound = {e: wq_spans[number] for e, number in numbers.items() if number in wq_spans}
        store.add_subspans((found[e], span, "work queue task") for e, span in bound.items())
        # Parsl's wrapper writes a log on the worker for each executor task.
        for e, task in bound.items():
            log = self._folder / label / "function_data" / e.zfill(4) / "log"
            if not log.is_file():
                continue
            lines = [
                (round(float(time) * 1e6), event.decode("utf-8", "replace").strip())
                for time, event in _REMOTE_LINE.findall(log.read_bytes())
                if not event.startswith(b"META_PATH ")
            ]
            span = store.span(_WQ_REMOTE, run.scope, f"{label}/{e}")
            types = [store.string(event) for _, event in lines]
            store.add_events([span] * len(lines), [time for time, _ in lines], types)
            store.add_subspans([(task, span, "remote")])
        return found
