"""The folder of one Parsl run: `parsl.log` or `parsl.jsonlog`, and its executors' own logs.

May import errors, spans.localtime, spans.store, spans.importers. Gives the workflow, its tasks and
tries, and binds them to what the executors' logs tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Key, Store
from mlflow_perf.spans.importers.htex import htex_folders, import_htex
from mlflow_perf.spans.importers.lines import Log, scope_of, wording_of
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
    # Join apps run in Parsl itself, which gives them no id. A JSON line goes on after a quote.
    rb"Parsl task (\d{1,13}) try (\d{1,4}) launched on executor (.+?)"
    rb'(?: with executor id (\w+))?(?:"|\s*$)'
)
_STATE = re.compile(rb"Task (\d{1,13}) (?:changing state from \w+ to|initializing state to) (\w+)")
_SUBMITTED = re.compile(rb"Task (\d{1,13}) submitted for App (\S+?),? (?:not )?waiting on (.*)")
_NUMBER = re.compile(rb"\b\d{1,13}\b")
# Three generations of Parsl wrote the same in three ways.
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
    """Imports one run's folder; an executor's folder without one counts as a run too."""

    name = "parsl-run"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Say whether it is a folder with Parsl's main log, or with an executor's logs."""
        if not source.is_dir():
            return False
        return any((source / log).is_file() for log in _LOGS) or any(
            (source / f"interchange.{kind}").is_file() for kind in ("log", "jsonlog")
        )

    def load(self, source: Path, store: Store) -> None:
        """Import the run, its tasks and tries, and the logs of its executors.

        Raises:
            SpansError: The main log holds several runs, whose tasks cannot be told apart.
        """
        log = next((source / name for name in _LOGS if (source / name).is_file()), None)
        if log is None:
            with (next(source.glob("interchange.*log"))).open("rb") as file:
                scope = store.scope(scope_of("htex", source, file.read(1 << 16)))
            import_htex(source.parent, source.name, store, scope=scope, offsets=[])
            return
        run = _read(log, store)
        _Writer(source, run, store).write()
        import_metric_lines(log, store, run.scope, run.offsets)


@dataclass
class _Run:
    """What the main log says.

    Attributes:
        scope: The scope's number.
        offsets: How far local times are ahead of UTC.
        began: Unix microseconds of its first line with a time.
        executors: The executor and its own task id by task and try.
        states: Task, Unix microseconds and state of each change.
        apps: Name of each task's function.
        needs: The tasks that each task waited for.
        wq_ids: Work Queue's own task id by the executor's.
        wq_completed: Executor task and Unix microseconds of each completion seen.
    """

    scope: int = 0
    offsets: list[Offset] = field(default_factory=list)
    began: int | None = None
    executors: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    states: list[tuple[int, int, str]] = field(default_factory=list)
    apps: dict[int, str] = field(default_factory=dict)
    needs: list[tuple[int, int]] = field(default_factory=list)
    wq_ids: dict[str, int] = field(default_factory=dict)
    wq_completed: list[tuple[str, int]] = field(default_factory=list)


def _read(path: Path, store: Store) -> _Run:
    run = _Run(offsets=offsets_of_log(path))
    with Log(path, run.offsets) as log:
        ids = {m[1].decode() for line in log.find(b"Run id is: ") if (m := _RUN_ID.search(line))}
        if len(ids) > 1:
            raise SpansError(
                f"{path} holds {len(ids)} runs, whose tasks have the same numbers: import its "
                "monitoring.db, or give each run a run folder of its own."
            )
        head = next(log.find(b" "), b"")
        run.scope = store.scope(f"parsl:{ids.pop()}" if ids else scope_of("parsl", path, head))
        local = re.search(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", head)
        if not run.offsets and local:
            run.offsets = log.offsets = machine_offsets(local[0].decode())
        run.began = log.time_us(head)
        store.progress("parsl.log", 0.05)
        _read_tasks(log, run, store)
        _read_work_queue(log, run, store)
        if not run.executors and not run.states:
            store.not_read(f"{path.name}: no line about a task in it")
    return run


def _read_tasks(log: Log, run: _Run, store: Store) -> None:
    for line in log.find(b" launched on executor "):
        if m := _matched(_LAUNCHED, line, store):
            executor = (m[3].decode("utf-8", "replace"), (m[4] or b"").decode())
            run.executors[int(m[1]), int(m[2])] = executor
    for words in (b" changing state from ", b" initializing state to "):
        for line in log.find(words):
            m, time = _matched(_STATE, line, store), log.time_us(line)
            if m and time is not None:
                run.states.append((int(m[1]), time, m[2].decode()))
    for line in log.find(b" submitted for App "):
        if m := _matched(_SUBMITTED, line, store):
            task = int(m[1])
            run.apps[task] = m[2].decode("utf-8", "replace")
            # A JSON line repeats its message, and goes on with numbers of other meaning.
            needs = m[3].split(b'"')[0]
            run.needs += [(task, int(n)) for n in _NUMBER.findall(needs)]


def _read_work_queue(log: Log, run: _Run, store: Store) -> None:
    for words, pattern in _WQ_SUBMITTED:
        for line in log.find(words):
            if m := _matched(pattern, line, store):
                run.wq_ids[m[1].decode()] = int(m[2])
    for line in log.find(b"Completed Work"):
        m, time = _matched(_WQ_COMPLETED, line, store), log.time_us(line)
        if m and time is not None:
            run.wq_completed.append((m[1].decode(), time))


def _matched(pattern: re.Pattern[bytes], line: bytes, store: Store) -> re.Match[bytes] | None:
    """Return the match of a line that has the right words; count the line where it has not all."""
    match = pattern.search(line)
    if match is None:
        store.not_read(wording_of(line))
    return match


class _Writer:
    """Stores a run and binds it to its executors' spans."""

    def __init__(self, folder: Path, run: _Run, store: Store) -> None:
        self._folder = folder
        self._run = run
        self._store = store

    def write(self) -> None:
        tries = self._write_tasks()
        labels = {label for label, _ in self._run.executors.values()}
        found: dict[tuple[str, str], int] = {}
        for number, label in enumerate(sorted(labels | htex_folders(self._folder))):
            self._store.progress(label, 0.1 + 0.9 * number / (len(labels) + 1))
            if (self._folder / label / "transaction_log").is_file():
                found |= self._write_work_queue(label)
            elif (self._folder / label).is_dir():
                spans = import_htex(
                    self._folder,
                    label,
                    self._store,
                    scope=self._run.scope,
                    offsets=self._run.offsets,
                )
                found |= {(label, task): span for task, span in spans.items()}
        self._store.add_subspans(
            (tries[task << 16 | attempt], found[executor], "executor task")
            for (task, attempt), executor in self._run.executors.items()
            if executor in found
        )

    def _write_tasks(self) -> dict[Key, int]:
        """Store workflow, tasks and tries; return the number of each try's span."""
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
        # What a monitoring database has told of this run already is not told again.
        if not self._monitored():
            store.add_events(
                [tasks[task] for task, _, _ in run.states],
                [time for _, time, _ in run.states],
                [store.string(state) for _, _, state in run.states],
            )
        return tries

    def _monitored(self) -> bool:
        query = (
            "SELECT 1 FROM span_row s JOIN string t ON t.id = s.type_id"
            " WHERE t.text = 'parsl.monitoring.workflow' AND s.scope_id = ?"
        )
        return self._store.db.execute(query, (self._run.scope,)).fetchone() is not None

    def _write_work_queue(self, label: str) -> dict[tuple[str, str], int]:
        """Store an executor's Work Queue log; return its tasks' spans by their executor ids."""
        run, store = self._run, self._store
        wq_spans = import_transactions(self._folder / label / "transaction_log", store)
        known = {e for exe, e in run.executors.values() if exe == label} | set(run.wq_ids)
        spans = store.add_spans(_WQ_TASK, run.scope, {f"{label}/{e}": {} for e in known})
        found = {e: spans[f"{label}/{e}"] for e in known}
        seen = [(found[e], time) for e, time in run.wq_completed if e in found]
        completed = store.string("executor_completed")
        store.add_events([s for s, _ in seen], [t for _, t in seen], [completed] * len(seen))
        bound = {e: wq_spans[w] for e, w in run.wq_ids.items() if w in wq_spans}
        if not run.wq_ids and len(found) == len(wq_spans):
            # Today's Parsl logs the pairs in a process of its own, to nowhere. Both number in the
            # order of submission, the executor from 0 and Work Queue from 1.
            numbers = {e: int(e) + 1 for e in found if e.isdigit()}
            bound = {e: wq_spans[number] for e, number in numbers.items() if number in wq_spans}
        store.add_subspans((found[e], span, "work queue task") for e, span in bound.items())
        self._write_remote(label, bound)
        return {(label, e): span for e, span in found.items()}

    def _write_remote(self, label: str, tasks: dict[str, int]) -> None:
        """Store what Parsl's wrapper wrote on the worker, one log for each executor task."""
        run, store = self._run, self._store
        for executor_id, task in tasks.items():
            log = self._folder / label / "function_data" / executor_id.zfill(4) / "log"
            if not log.is_file():
                continue
            lines = [
                (round(float(time) * 1e6), event.decode("utf-8", "replace").strip())
                for time, event in _REMOTE_LINE.findall(log.read_bytes())
                if not event.startswith(b"META_PATH ")
            ]
            span = store.span(_WQ_REMOTE, run.scope, f"{label}/{executor_id}")
            types = [store.string(event) for _, event in lines]
            store.add_events([span] * len(lines), [time for time, _ in lines], types)
            store.add_subspans([(task, span, "remote")])
