"""How long workflows take on a machine whose memory is the limit: presets against learned sizes.

`python -m benchmarks replay --data FILE` takes the tasks of `sizing`; the first 30% of each process
are history. `--data FOLDER` takes Nextflow traces; of `NAME.1.csv` and `NAME.2.csv` the first is
history. A simulated machine starts tasks in the order of their submission as far as memory allows,
as the runner does. A task waits for the task that ended last before it was submitted. A task with
too little memory is killed at the end of its time and tried again with more, until it finishes.
Learned sizes come from the history and the tasks that ended before; the first task of a process
gets its preset.

`--real` runs a small workflow instead, whose tasks hold real memory: see `_real_replay.py`.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._given_data import read_given_data, read_path
from benchmarks._real_replay import replay_real
from benchmarks.sizing import HISTORY, Ours, Preset, Rule, Seqera, Task, load_processes

from mlflow_perf.histories import read_histories

MEMORY_MB = 128.0 * 1024


@dataclass
class Job:
    """One task of a workflow in the queue."""

    process: str
    task: Task
    submitted: float
    parent: int = -1


@dataclass
class Outcome:
    """How a replay went: its makespan in hours, and its out-of-memory kills."""

    hours: float = 0.0
    kills: int = 0
    killed_tasks: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)


def replay(jobs: list[Job], history: list[Job], make: Callable[[], Rule]) -> Outcome:
    """Run the jobs on the simulated machine with one sizing rule per process."""
    rules: dict[str, Rule] = defaultdict(make)
    for job in history:
        rules[job.process].observe(job.task)
    seen = {job.process for job in history}
    children = defaultdict(list)
    for i, job in enumerate(jobs):
        children[job.parent].append(i)
    queue = list(children[-1])
    running: list[tuple[float, int]] = []
    memory, now, done = MEMORY_MB, 0.0, Outcome()
    sizes: dict[int, float] = {}
    while queue or running:
        waiting = []
        for i in sorted(queue):
            job = jobs[i]
            size = sizes.get(i, 0.0)
            if not size:
                known = job.process in seen
                size = rules[job.process].size(job.task) if known else job.task.requested
            size = min(size, MEMORY_MB)
            if size <= memory:
                memory, sizes[i] = memory - size, size
                heapq.heappush(running, (now + job.task.seconds, i))
            else:
                waiting.append(i)
        queue = waiting
        now, i = heapq.heappop(running)
        job, size = jobs[i], sizes[i]
        memory += size
        if size < job.task.peak and size < MEMORY_MB:
            done.kills += 1
            done.killed_tasks.add(i)
            known = job.process in seen
            sizes[i] = rules[job.process].resize(job.task, size) if known else 2 * size
            queue.append(i)
            continue
        done.finished.add(i)
        rules[job.process].observe(job.task)
        seen.add(job.process)
        queue += children[i]
    done.hours = now / 3600.0
    return done


def link(jobs: list[Job]) -> list[Job]:
    """Return the jobs in the order of submission, each after the one that had ended last."""
    jobs = sorted(jobs, key=lambda job: job.submitted)
    ends = sorted((job.submitted + job.task.seconds, i) for i, job in enumerate(jobs))
    times = [end for end, _ in ends]
    for i, job in enumerate(jobs):
        before = bisect_right(times, job.submitted) - 1
        # A task of no length ends when it begins: only earlier ones can be waited for.
        while before >= 0 and ends[before][1] >= i:
            before -= 1
        job.parent = ends[before][1] if before >= 0 else -1
    return jobs


def load_traces(folder: Path) -> dict[str, tuple[list[Job], list[Job]]]:
    """Return history and jobs of the workflows in a folder of Nextflow traces."""
    found: dict[str, tuple[list[Job], list[Job]]] = {}
    for file in sorted(folder.glob("*.csv")) + sorted(folder.glob("*.txt")):
        for workflow in read_histories([file]):
            jobs = [
                Job(
                    t.component,
                    Task(t.peak_mb, t.duration_sec, t.params.get("read_mb", 0.0),
                         t.memory_limit_mb),
                    t.started,
                )
                for t in workflow.tasks
                if t.peak_mb and t.memory_limit_mb and t.started is not None
            ]  # fmt: skip
            name = file.name.partition(".")[0]
            before = found.get(name, ([], []))
            found[name] = ([*before[0], *before[1]], jobs)
    return found


def load_rows(rows: list[dict[str, str]]) -> dict[str, tuple[list[Job], list[Job]]]:
    """Return history and jobs of the workflows in the rows that `sizing` reads."""
    found: dict[str, list[Job]] = defaultdict(list)
    ordered = sorted(rows, key=lambda row: float(row["submitted_ms"]))
    tasks = {key: iter(tasks) for key, tasks in load_processes(rows).items()}
    for row in ordered:
        if float(row["peak_rss"]) > 0:
            task = next(tasks[row["workflow"], row["process"]])
            submitted = float(row["submitted_ms"]) / 1000.0
            found[row["workflow"]].append(Job(row["process"], task, submitted))
    return {name: _split(jobs) for name, jobs in found.items()}


def _split(jobs: list[Job]) -> tuple[list[Job], list[Job]]:
    """Return the first 30% of each process, and the others."""
    counts = Counter(job.process for job in jobs)
    seen: Counter[str] = Counter()
    history: list[Job] = []
    rest: list[Job] = []
    for job in jobs:
        (history if seen[job.process] < int(counts[job.process] * HISTORY) else rest).append(job)
        seen[job.process] += 1
    return history, rest


def main() -> int:
    """Print the makespans."""
    if sys.argv[1:] == ["--real"]:
        return replay_real()
    path = read_path("the tasks of workflows, or a folder of Nextflow traces")
    if path is not None and path.is_dir():
        workflows = load_traces(path)
    else:
        rows = read_given_data("the tasks of workflows and their peaks")
        if rows is None:
            return 0
        workflows = load_rows(rows)
    print(f"{MEMORY_MB / 1024:g} GB; target: 22% shorter, every kill finished")
    print(f"{'':14} {'tasks':>6} {'presets':>9} {'Seqera':>9} {'learned':>9} {'change':>8}  kills")
    totals = [0.0, 0.0, 0.0]
    for name, (history, jobs) in workflows.items():
        linked = link(jobs)
        outcomes = [replay(linked, history, make) for make in (Preset, Seqera, Ours)]
        hours = [outcome.hours for outcome in outcomes]
        totals = [total + one for total, one in zip(totals, hours, strict=True)]
        ours = outcomes[-1]
        lost = len(ours.killed_tasks - ours.finished)
        print(
            f"{name:14} {len(jobs):6} {hours[0]:8.2f}h {hours[1]:8.2f}h {hours[2]:8.2f}h "
            f"{100 * (hours[2] / hours[0] - 1):+7.1f}%  {ours.kills} of {len(jobs)}, "
            f"{lost} not finished; Seqera {outcomes[1].kills}",
            flush=True,
        )
    change = 100 * (totals[2] / totals[0] - 1)
    print(
        f"{'all':14} {'':6} {totals[0]:8.2f}h {totals[1]:8.2f}h {totals[2]:8.2f}h {change:+7.1f}%"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
