"""How long spans take to import and to analyse, beside a peer's way and beside the bare minimum.

`python benchmarks/spans.py [TASKS] [--tenfold]` makes its own sources (100,000 tasks: a million
events) and prints a table. Times are CPU seconds, since the machines that run it are shared, and
the two columns beside ours are taken in the same run:

- "row by row" is dnpcsql's way on the same data: a uuid and an INSERT for each row, its recursive
  query, its grouping in Python, less what is quadratic in it; for Work Queue's log, a loop that
  splits each line and stores what it says with `executemany`.
- "bare" is the least that the work can be: of an import, nothing but `INSERT ... SELECT` of tasks,
  tries, subspans and events; of a picture, matplotlib drawing ready numbers; of the interchange's
  log, finding three words in the mapped file.

`--tenfold` imports ten times as many as well, and prints time and memory as multiples.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mlflow_perf import spans
from mlflow_perf.spans.analyses.state_curves import States
from mlflow_perf.spans.output.plots import save

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "tests" / "spans" / "data" / "monitoring_schema.sql"
OURS = ROOT / "src" / "common" / "mlflow_perf" / "spans" / "database" / "schema.sql"
WORDS = (b"egistration info for manager", b"Sent tasks: [", b"Removing task ")
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

# The tables of the spans database, from those of the attached source.
BARE_IMPORT = """
INSERT INTO string (text) VALUES ('task'), ('try'), ('invoked'), ('returned');
INSERT INTO string (text) SELECT DISTINCT task_func_name FROM source.task
UNION SELECT DISTINCT task_status_name FROM source.status
UNION SELECT DISTINCT hostname FROM source.try;
INSERT INTO scope (name) SELECT run_id FROM source.workflow;
INSERT INTO span_row (type_id, scope_id, key, name_id) SELECT 1, 1, task_id, n.id
FROM source.task JOIN string n ON n.text = task_func_name;
INSERT INTO span_row (type_id, scope_id, key, host_id) SELECT 2, 1, task_id << 16 | try_id, n.id
FROM source.try JOIN string n ON n.text = hostname;
INSERT INTO subspan_row SELECT a.id, b.id, b.key & 65535
FROM span_row b JOIN span_row a ON a.type_id = 1 AND a.scope_id = 1 AND a.key = b.key >> 16
WHERE b.type_id = 2;
INSERT INTO event_row SELECT s.id, @(task_time_invoked), 3, 0
FROM source.task JOIN span_row s ON s.type_id = 1 AND s.scope_id = 1 AND s.key = task_id
ORDER BY 1, 2;
INSERT INTO event_row SELECT s.id, @(task_time_returned), 4, 0
FROM source.task JOIN span_row s ON s.type_id = 1 AND s.scope_id = 1 AND s.key = task_id
ORDER BY 1, 2;
INSERT INTO event_row SELECT s.id, @(timestamp), k.id, 0
FROM source.status JOIN string k ON k.text = task_status_name
JOIN span_row s ON s.type_id = 2 AND s.scope_id = 1 AND s.key = task_id << 16 | try_id
ORDER BY 1, 2, 3
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
    """Find the sequences with dnpcsql's query and its grouping."""
    rows = sqlite3.connect(db).execute(QUERY).fetchall()
    groups = itertools.groupby(rows, lambda row: row[0])
    Counter(" ".join(f"{row[2]} {row[3]}" for row in group) for _, group in groups)


def import_in_sql(source: Path, target: Path) -> None:
    """Import a monitoring.db with nothing but SQL: no attributes, needs, resources or columns."""
    db = sqlite3.connect(target, uri=True, isolation_level=None)
    db.executescript(OURS.read_text("utf-8"))
    db.execute("ATTACH ? AS source", (f"file:{source}?mode=ro",))
    db.execute("BEGIN")
    time_us = r"unixepoch(substr(\1, 1, 19)) * 1000000 + substr(\1, 21)"
    for statement in re.sub(r"@\((\w+)\)", time_us, BARE_IMPORT).split(";"):
        db.execute(statement)
    db.execute("COMMIT")
    db.close()


def work_queue_by_row(source: Path, target: Path) -> None:
    """Store what each line of a transaction log says of its task."""
    db = sqlite3.connect(target)
    db.execute("CREATE TABLE event (task INTEGER, time INTEGER, type TEXT)")
    with source.open() as file:
        lines = (line.split() for line in file)
        rows = ((w[3], w[0], w[4]) if w[2] == "TASK" else (w[4], w[0], w[3]) for w in lines)
        db.executemany("INSERT INTO event VALUES (?, ?, ?)", rows)
    db.execute("CREATE INDEX event_task ON event (task, time)")
    db.commit()
    db.close()


def find_words(log: Path) -> None:
    """Find the words of an interchange's log that matter."""
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for word in WORDS:
            at = 0
            while (at := data.find(word, at) + 1) > 0:
                pass


def cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds that some work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main(count: int, *, tenfold: bool) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, db = folder / "monitoring.db", folder / "spans.sqlite3"
        make_monitoring(source, count)
        spans.types(_warm(folder))
        rows: list[tuple[str, float | None, float | None, float, str]] = [
            (
                "import of monitoring.db",
                cpu(lambda: import_by_row(source, folder / "rows.sqlite3")),
                cpu(lambda: import_in_sql(source, folder / "bare.sqlite3")),
                cpu(lambda: spans.import_sources(source, db)),
                "≤ 2.5",
            )
        ]
        size = db.stat().st_size / 1e6
        used = _import_alone(source, folder / "alone.sqlite3")
        by_row = cpu(lambda: sequences_by_row(db))
        rows += [
            ("event sequences", by_row, None, cpu(lambda: spans.sequences(db)), "≤ 0.5"),
            ("states, with the plot", None, *_states(db, folder), "≤ 1.0"),
            ("durations, with the plots", None, *_durations(db, folder), "≤ 1.0"),
        ]
        log = folder / "transaction_log"
        make_work_queue(log, count)
        by_row = cpu(lambda: work_queue_by_row(log, folder / "rows_wq.sqlite3"))
        took = cpu(lambda: spans.import_sources(log, folder / "wq"))
        rows.append(("Work Queue log", by_row, None, took, "≤ 2.5"))
        size_log = make_run(folder / "000", count // 10) / 1e6
        bare = cpu(lambda: find_words(folder / "000" / "htex" / "interchange.log"))
        took = cpu(lambda: spans.import_sources(folder / "000", folder / "htex"))
        rows.append(
            (f"interchange log, {size_log:.0f} MB", None, bare, took, f"≤ {size_log / 300:.2f}")
        )
        if tenfold:
            make_monitoring(folder / "tenfold.db", 10 * count)
            # Right before and after, as a shared machine changes its speed.
            used = _import_alone(source, folder / "before.sqlite3")
            more = _import_alone(folder / "tenfold.db", folder / "tenfold.sqlite3")
            after = _import_alone(source, folder / "after.sqlite3")
            more["times"] = 2 * more["cpu_s"] / (used["cpu_s"] + after["cpu_s"])
    print(f"{count:,} tasks; CPU seconds\n")
    print("| what | row by row | bare | ours | of row by row | of bare | target |")
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for what, peer, floor, ours, target in rows:
        left = f"{_figure(peer)} | {_figure(floor)} | {ours:.2f}"
        print(f"| {what} | {left} | {_ratio(ours, peer)} | {_ratio(ours, floor)} | {target} |")
    print(f"\ninterchange log: {size_log / took:.0f} MB/s (target 300)")
    print(
        f"the import alone: {used['cpu_s']:.2f} s, {used['peak_mb']:.0f} MB at its peak (150), of"
    )
    print(f"  which Python {used['python_mb']:.0f}, numpy and sqlite {used['numpy_mb']:.0f}, "
          f"ours {used['ours_mb']:.0f}, the import {used['import_mb']:.0f}")  # fmt: skip
    print(f"the database: {size:.0f} MB")
    if tenfold:
        print(f"ten times as many: {more['cpu_s']:.1f} s, {more['peak_mb']:.0f} MB; "
              f"{more['times']:.1f} x the time and "
              f"{more['peak_mb'] / used['peak_mb']:.1f} x the memory of one")  # fmt: skip


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _ratio(ours: float, other: float | None) -> str:
    return "" if other is None else f"{ours / other:.2f} x"


ALONE = """
import json, sys, time
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
found = [peak()]
import numpy, sqlite3
found.append(peak())
from mlflow_perf import spans
import mlflow_perf.spans.importers.load_sources
found.append(peak())
start = time.process_time()
spans.import_sources(*sys.argv[1:])
took = time.process_time() - start
found.append(peak())
steps = [after - before for before, after in zip([0, *found], found)]
names = ["python_mb", "numpy_mb", "ours_mb", "import_mb"]
print(json.dumps({"cpu_s": took, "peak_mb": found[-1], **dict(zip(names, steps))}))
"""


def _import_alone(source: Path, target: Path) -> dict[str, float]:
    """Import a source in a process of its own; return its CPU seconds and its memory in MB.

    Its own high-water mark: what `getrusage` gives counts the process that started it too.
    """
    command = [sys.executable, "-c", ALONE, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _warm(folder: Path) -> Path:
    """Load what is loaded once: numpy, matplotlib."""
    spans.connect(folder / "warm.sqlite3", write=True).close()
    save(spans.plot_concurrency([{"time_s": 0.0, "spans": 1}], "warm"), folder / "warm.png")
    return folder / "warm.sqlite3"


def _states(db: Path, folder: Path) -> tuple[float, float]:
    """Return what drawing ready numbers takes, and what the whole does."""
    found = spans.state_counts(db)
    ready = {name: np.arange(len(found.time)) for name in found.counts}
    bare = States(found.time, ready)
    return (
        cpu(lambda: save(spans.plot_states(bare, "bare"), folder / "bare.png")),
        cpu(lambda: save(spans.plot_states(spans.state_counts(db), "states"), folder / "s.png")),
    )


def _durations(db: Path, folder: Path) -> tuple[float, float]:
    root = "parsl.monitoring.task"
    ready = spans.span_durations(db, root)

    def whole() -> None:
        spans.durations(db, root)
        save(spans.plot_times(spans.span_durations(db, root), root), folder / "durations.png")

    bare = cpu(lambda: save(spans.plot_times(ready, root), folder / "bare.png"))
    return bare, cpu(whole)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", type=int, nargs="?", default=100_000)
    parser.add_argument("--tenfold", action="store_true")
    arguments = parser.parse_args()
    main(arguments.tasks, tenfold=arguments.tenfold)
