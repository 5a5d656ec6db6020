"""How long spans take to import and to analyse, beside doing it row by row as dnpcsql does.

`python benchmarks/spans.py [TASKS]` makes its own sources (100,000 tasks: a million events) and
prints a table. Times are CPU seconds of this process, since the machines that run it are shared;
"row by row" is dnpcsql's way on the same data: a uuid and an INSERT for each row, its recursive
query, its grouping in Python. It leaves out what is quadratic in dnpcsql.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from mlflow_perf import spans
from mlflow_perf.spans.plots import save

SCHEMA = Path(__file__).parents[1] / "tests" / "spans" / "data" / "monitoring_schema.sql"
RUN = "00000000-0000-0000-0000-000000000001"
STATES = ("pending", "launched", "running", "running_ended")
QUERY = """
WITH RECURSIVE descs(root, span) AS (
    SELECT uuid, uuid FROM span WHERE type = 'parsl.monitoring.task'
    UNION SELECT root, subspan_uuid FROM subspan, descs WHERE superspan_uuid = span
    UNION SELECT root, right_uuid FROM facet, descs WHERE left_uuid = span
    UNION SELECT root, left_uuid FROM facet, descs WHERE right_uuid = span)
SELECT root, event.time, span.type, event.type FROM descs, span, event
WHERE span.uuid = descs.span AND event.span_uuid = span.uuid ORDER BY root, event.time
"""


def stamp(second: float) -> str:
    """Return a time as Parsl's monitoring writes it."""
    whole, micro = divmod(round(second * 1e6), 1_000_000)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(whole)) + f".{micro:06}"


def make_monitoring(path: Path, count: int) -> None:
    """Write a monitoring.db of `count` tasks, 1.6 tries each, five states a try."""
    chance = random.Random(0)
    tasks, tries, states = [], [], []
    for task in range(count):
        invoked = now = 1795000000.0 + task * 0.0004
        attempt = 0
        while True:
            failed = chance.random() < 0.375 and attempt < 7
            end = "fail_retryable" if failed else "exec_done"
            for state in (*STATES, end):
                now += chance.uniform(0.0002, 2.0)
                states.append((task, state, stamp(now), RUN, attempt))
            tries.append(
                (attempt, task, RUN, "0", f"node{task % 16:02}", "htex", None, None, stamp(now))
            )
            if not failed:
                break
            attempt += 1
        depends = str(task - 100) if task >= 100 else ""
        tasks.append((task, RUN, depends, f"app{task % 7}", stamp(invoked), stamp(now)))
    states.sort(key=lambda row: row[2])
    db = sqlite3.connect(path)
    db.executescript(SCHEMA.read_text("utf-8"))
    whole = (RUN, "bench", "1", stamp(1795000000), stamp(1795009999), "h", "u", "/000", 0, 0)
    db.execute("INSERT INTO workflow VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", whole)
    db.executemany(
        "INSERT INTO task VALUES (?, ?, ?, ?, '0', NULL, '', '', '', '', '', ?, ?, 0, 0)", tasks
    )
    db.executemany("INSERT INTO try VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '', NULL)", tries)
    db.executemany("INSERT INTO status VALUES (?, ?, ?, ?, ?)", states)
    db.commit()
    db.close()


def make_work_queue(path: Path, count: int) -> None:
    """Write a transaction log of `count` tasks, ten lines each."""
    lines = []
    for task in range(1, count + 1):
        at = 1795000000_000000 + task * 800
        for step, rest in enumerate(
            (
                f"TASK {task} WAITING f FIRST_RESOURCES {{}}",
                *(f"TRANSFER INPUT {task} 0 0.006 0.00003 {name}" for name in ("a", "b", "c")),
                f'TASK {task} RUNNING 10.0.0.1:60778  FIRST_RESOURCES {{"cores":[8,"cores"]}}',
                f"TASK {task} WAITING_RETRIEVAL 10.0.0.1:60778 ",
                *(f"TRANSFER OUTPUT {task} 0 0.005 0.0002 {name}" for name in ("result", "log")),
                f"TASK {task} RETRIEVED SUCCESS  0  {{}} {{}}",
                f"TASK {task} DONE SUCCESS  0  {{}} {{}}",
            )
        ):
            lines.append((at + step * 50_000, rest))
    lines.sort()
    path.write_text("".join(f"{time_us} 372 {rest}\n" for time_us, rest in lines))


def make_run(folder: Path, count: int) -> int:
    """Write a run with an interchange's log as `worker_debug` has it; return the log's bytes."""
    (folder / "htex").mkdir(parents=True)
    (folder / "parsl.log").write_text(f"1795000000.0 2026-11-18 11:06:40 INFO: Run id is: {RUN}\n")
    head = (
        "2026-11-18 11:06:40 MainProcess-1 MainThread-1 parsl.executors.high_throughput.interchange"
    )
    noise = f"1795000000.000001 {head}:1 start DEBUG: starting worker message section\n" * 90
    log = folder / "htex" / "interchange.log"
    with log.open("w") as file:
        for task in range(count):
            at = 1795000000 + task / 1000
            file.write(
                f"{at:.6f} {head}:5 _ DEBUG: Sent tasks: [{task}] to manager b'4bf9bf8c1848'\n"
            )
            file.write(noise)
            file.write(f"{at + 1:.6f} {head}:6 _ DEBUG: Removing task {task} from manager\n")
    return log.stat().st_size


def import_by_row(source: Path, target: Path) -> None:
    """Import a monitoring.db as dnpcsql does, less its queries for each task."""
    db = sqlite3.connect(target)
    db.execute("CREATE TABLE span (uuid TEXT PRIMARY KEY, type TEXT, note TEXT)")
    db.execute("CREATE TABLE event (uuid TEXT PRIMARY KEY, span_uuid TEXT, time TEXT, type TEXT)")
    db.execute("CREATE TABLE subspan (superspan_uuid TEXT, subspan_uuid TEXT, key TEXT)")
    rows = sqlite3.connect(source)
    found = {}
    for (task,) in rows.execute("SELECT task_id FROM task"):
        found[task] = str(uuid.uuid4())
        db.execute("INSERT INTO span VALUES (?, ?, ?)", (found[task], "task", ""))
    for task, attempt in rows.execute("SELECT task_id, try_id FROM try"):
        found[task, attempt] = str(uuid.uuid4())
        db.execute("INSERT INTO span VALUES (?, ?, ?)", (found[task, attempt], "try", ""))
        db.execute(
            "INSERT INTO subspan VALUES (?, ?, ?)", (found[task], found[task, attempt], attempt)
        )
    query = "SELECT task_id, try_id, task_status_name, timestamp FROM status"
    for task, attempt, state, at in rows.execute(query):
        row = (str(uuid.uuid4()), found[task, attempt], at, state)
        db.execute("INSERT INTO event VALUES (?, ?, ?, ?)", row)
    db.commit()


def sequences_by_row(db: Path) -> None:
    """Find the orderings with dnpcsql's query and its grouping."""
    rows = sqlite3.connect(db).execute(QUERY).fetchall()
    groups = itertools.groupby(rows, lambda row: row[0])
    Counter(" ".join(f"{row[2]} {row[3]}" for row in group) for _, group in groups)


def cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds that some work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main(count: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, db = folder / "monitoring.db", folder / "spans.sqlite3"
        make_monitoring(source, count)
        spans.types(_warm(folder))
        rows = [
            (
                "import of monitoring.db",
                cpu(lambda: import_by_row(source, folder / "rows.sqlite3")),
                cpu(lambda: spans.import_sources(source, db)),
                2.5,
            )
        ]
        size = db.stat().st_size / 1e6
        peak = _peak_of_import(source, folder)
        by_row = cpu(lambda: sequences_by_row(db))
        rows += [
            ("event sequences", by_row, cpu(lambda: spans.sequences(db)), 0.5),
            ("states, with the plot", None, cpu(lambda: _states(db, folder)), 1.0),
            ("durations, with the plots", None, cpu(lambda: _durations(db, folder)), 1.0),
        ]
        make_work_queue(folder / "transaction_log", count)
        log = cpu(lambda: spans.import_sources(folder / "transaction_log", folder / "wq"))
        rows.append(("Work Queue log", None, log, 2.5))
        size_log = make_run(folder / "000", count // 10) / 1e6
        took = cpu(lambda: spans.import_sources(folder / "000", folder / "htex"))
    print(f"{count:,} tasks; CPU seconds\n")
    print("| what | row by row | ours | ratio | target |\n|:--|--:|--:|--:|--:|")
    for what, peer, ours, target in rows:
        left = f"{peer:.2f} | {ours:.2f} | {peer / ours:.0f} ×" if peer else f"| {ours:.2f} | "
        print(f"| {what} | {left} | {target} |")
    print(f"\ninterchange log: {size_log:.0f} MB at {size_log / took:.0f} MB/s (target 300)")
    print(f"database: {size:.0f} MB; the import's process: {peak:.0f} MB at its peak (target 150)")


def _peak_of_import(source: Path, folder: Path) -> float:
    """Return the most memory in MB that a process of its own takes to import a source."""
    script = (
        "import resource, sys; from mlflow_perf import spans; spans.import_sources(*sys.argv[1:]);"
        " print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    command = [sys.executable, "-c", script, str(source), str(folder / "peak.sqlite3")]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _warm(folder: Path) -> Path:
    """Load what is loaded once: numpy, matplotlib."""
    spans.connect(folder / "warm.sqlite3", write=True).close()
    save(spans.plot_concurrency([{"time_s": 0.0, "spans": 1}], "warm"), folder / "warm.png")
    return folder / "warm.sqlite3"


def _states(db: Path, folder: Path) -> None:
    save(spans.plot_states(spans.state_counts(db), "states"), folder / "states.png")


def _durations(db: Path, folder: Path) -> None:
    root = "parsl.monitoring.task"
    spans.durations(db, root)
    save(spans.plot_times(spans.span_durations(db, root), root), folder / "durations.png")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
