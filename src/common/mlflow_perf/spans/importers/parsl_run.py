"""The folder of one Parsl run: `parsl.log` or `parsl.jsonlog`, and the logs of its executors.

This gives the workflow, its tasks and tries, and binds them to the spans of the executors' logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import read_head
from mlflow_perf.spans.importers.htex import find_htex_labels, find_logs, import_htex
from mlflow_perf.spans.importers.lines import Log, make_log_scope
from mlflow_perf.spans.importers.local_time import Offset, find_offsets
from mlflow_perf.spans.importers.metric_lines import import_metric_lines
from mlflow_perf.spans.importers.workqueue import import_transactions

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
# A fixed wording and its pattern, in three generations of Parsl.
_WQ_SUBMITTED = {
    b"as Work Queue task": rb"ask (\d+) submitted as Work Queue task (\d+)",
    b"to Work Queue with": rb"ask (\d+) submitted to Work Queue with \D*(\d+)",
    b"to WorkQueue with": rb"ask (\d+) submitted to WorkQueue with id (\d+)",
}
_WQ_COMPLETED = re.compile(rb"Completed Work ?Queue task \d+, (?:parsl )?(?:executor )?task (\d+)")
_REMOTE_LINE = re.compile(rb"^(\d{1,12}\.\d+) (.+)$", re.MULTILINE)


class ParslRunImporter:
    """Imports a run's folder, or a single executor's folder."""

    name = "parsl-run"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is a folder with Parsl's main log, or with an executor's logs."""
        logs = (source / name for name in (*_LOGS, "interchange.log", "interchange.jsonlog"))
        return any(log.is_file() for log in logs)

    def load(self, source: Path, store: Store) -> None:
        """Import the run, its tasks and tries, and the logs of its executors.

        Raises:
            SpansError: The main log holds several runs, whose tasks have the same numbers.
        """
        log = next((source / name for name in _LOGS if (source / name).is_file()), None)
        if log is None:
            head = read_head(find_logs(source, "interchange")[0])
            scope = store.scope(make_log_scope("htex", source, head))
            import_htex(source.parent, source.name, store, scope=scope, offsets=[])
            return
        run = _read_main_log(log, store)
        _write_run(source, run, store)
        import_metric_lines(log, store, run.scope, run.offsets)


@dataclass
class _Run:
    """The contents of the main log. `wq` is Work Queue."""

    scope: int
    offsets: list[Offset]
    # By task and try: the executor, and its own id of the task.
    executors: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    # Task, Unix microseconds and state of each change.
    states: list[tuple[int, int, str]] = field(default_factory=list)
    apps: dict[int, str] = field(default_factory=dict)
    needs: list[tuple[int, int]] = field(default_factory=list)
    wq_ids: dict[str, int] = field(default_factory=dict)
    wq_completed: list[tuple[str, int]] = field(default_factory=list)


def _read_main_log(path: Path, store: Store) -> _Run:
    offsets = find_offsets(path, store)
    with Log(path, offsets) as log:
        ids = {m[1].decode() for line in log.find(b"Run id is: ") if (m := _RUN_ID.search(line))}
        if len(ids) > 1:
            raise SpansError(
                f"{path} holds {len(ids)} runs, whose tasks have the same numbers: import its "
                "monitoring.db, or give each run a run folder of its own."
            )
        head = next(log.find(b" "), b"")
        scope = f"parsl:{ids.pop()}" if ids else make_log_scope("parsl", path, head)
        run = _Run(store.scope(scope), offsets)
        store.progress("parsl.log", 0.05)
        for m, _ in log.search(b" launched on executor ", _LAUNCHED, store):
            label = m[3].decode("utf-8", "replace")
            run.executors[int(m[1]), int(m[2])] = (label, (m[4] or b"").decode())
        for words in (b" changing state from ", b" initializing state to "):
            for m, time in log.search(words, _STATE, store):
                run.states.append((int(m[1]), time, m[2].decode()))
        for m, _ in log.search(b" submitted for App ", _SUBMITTED, store):
            task = int(m[1])
            run.apps[task] = m[2].decode("utf-8", "replace")
            # A JSON line continues after its message, with unrelated numbers.
            needs = m[3].split(b'"')[0]
            run.needs += [(task, int(n)) for n in _NUMBER.findall(needs)]
        for words, pattern in _WQ_SUBMITTED.items():
            for m, _ in log.search(b"submitted " + words, re.compile(pattern), store):
                run.wq_ids[m[1].decode()] = int(m[2])
        for m, time in log.search(b"Completed Work", _WQ_COMPLETED, store):
            run.wq_completed.append((m[1].decode(), time))
        if not run.executors and not run.states:
            store.not_read(f"{path.name}: no line about a task in it")
    return run


def _write_run(folder: Path, run: _Run, store: Store) -> None:
    """Store a run and bind it to its executors' spans."""
    workflow = store.span(_WORKFLOW, run.scope, 0)
    ids = {t for t, _ in run.executors} | {t for t, _, _ in run.states} | set(run.apps)
    tasks = store.add_spans(_TASK, run.scope, {t: {"name": run.apps.get(t)} for t in ids})
    about = {t << 16 | a: {"executor": e} for (t, a), (e, _) in run.executors.items()}
    tries = store.add_spans(_TRY, run.scope, about)
    store.add_subspans((workflow, span, task) for task, span in tasks.items())
    store.add_subspans((tasks[t], tries[t << 16 | a], a) for t, a in run.executors)
    store.add_dependencies((tasks[t], tasks[n]) for t, n in run.needs if n in tasks)
    # The run's monitoring database, if it is imported, has these states already.
    monitored = store.db.execute(
        "SELECT 1 FROM span_row s JOIN string t ON t.id = s.type_id"
        " WHERE t.text = 'parsl.monitoring.workflow' AND s.scope_id = ?",
        (run.scope,),
    )
    if monitored.fetchone() is None:
        store.add_events((tasks[task], time, state) for task, time, state in run.states)
    labels = {label for label, _ in run.executors.values()}
    found: dict[tuple[str, str], int] = {}
    for number, label in enumerate(sorted(labels | find_htex_labels(folder))):
        store.progress(label, 0.1 + 0.9 * number / (len(labels) + 1))
        if (folder / label / "transaction_log").is_file():
            spans = _write_work_queue(folder / label, run, store)
        elif (folder / label).is_dir():
            spans = import_htex(folder, label, store, scope=run.scope, offsets=run.offsets)
        else:
            continue
        found |= {(label, task): span for task, span in spans.items()}
    store.add_subspans(
        (tries[task << 16 | attempt], found[executor], "executor task")
        for (task, attempt), executor in run.executors.items()
        if executor in found
    )


def _write_work_queue(folder: Path, run: _Run, store: Store) -> dict[str, int]:
    """Store an executor's Work Queue log; return its tasks' spans by their executor ids."""
    label = folder.name
    wq_spans = import_transactions(folder / "transaction_log", store)
    known = {e for exe, e in run.executors.values() if exe == label} | set(run.wq_ids)
    spans = store.add_spans(_WQ_TASK, run.scope, {f"{label}/{e}": {} for e in known})
    found = {e: spans[f"{label}/{e}"] for e in known}
    store.add_events(
        (found[e], time, "executor_completed") for e, time in run.wq_completed if e in found
    )
    bound = {e: wq_spans[w] for e, w in run.wq_ids.items() if w in wq_spans}
    if not run.wq_ids and len(found) == len(wq_spans):
        # Today's Parsl does not log the pairs. Both sides number their tasks in the order of
        # submission, the executor from 0 and Work Queue from 1.
        numbers = {e: int(e) + 1 for e in found if e.isdigit()}
        bound = {e: wq_spans[number] for e, number in numbers.items() if number in wq_spans}
    store.add_subspans((found[e], span, "work queue task") for e, span in bound.items())
    # Parsl's wrapper writes a log on the worker for each executor task.
    for e, task in bound.items():
        log = folder / "function_data" / e.zfill(4) / "log"
        if log.is_file():
            span = store.span(_WQ_REMOTE, run.scope, f"{label}/{e}")
            store.add_events(
                (span, round(float(time) * 1e6), event.decode("utf-8", "replace").strip())
                for time, event in _REMOTE_LINE.findall(log.read_bytes())
                if not event.startswith(b"META_PATH ")
            )
            store.add_subspans([(task, span, "remote")])
    return found
