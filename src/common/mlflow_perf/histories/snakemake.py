"""Snakemake's benchmark files: a line per repeat of a rule.

https://snakemake.readthedocs.io/en/stable/snakefiles/rules.html#benchmark-rules
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from contextlib import suppress

from mlflow_perf.core.json_io import read_number
from mlflow_perf.histories.table import Row, Table
from mlflow_perf.histories.tasks import Task, Workflow

_PLAIN_FOLDERS = re.compile(r"benchmarks?|logs?|results?|out|output", re.IGNORECASE)
_SUFFIXES = re.compile(r"(\.(tsv|txt|csv|bench|benchmark|benchmarks))+$", re.IGNORECASE)


def is_benchmark(table: Table) -> bool:
    """Return whether the heading line is that of a benchmark file."""
    return {"s", "h:m:s", "max_rss"} <= set(table.header)


def read_benchmarks(tables: Sequence[Table]) -> list[Workflow]:
    """Return one workflow of all benchmark files: a rule writes a file for each of its jobs.

    The rule is the column `rule_name` (`--benchmark-extended`), else the folder of the file, else
    that part of the file's name between points that varies least.

    Raises:
        SettingError: A line cannot be read; the message names file and line.
    """
    tasks: list[Task] = []
    left_out = 0
    loose = [t for t in tables if _PLAIN_FOLDERS.fullmatch(t.path.resolve().parent.name)]
    # The rule in `A.sort`, `B.sort`, … is the part that varies least.
    names = [_SUFFIXES.sub("", table.path.name).split(".") for table in loose]
    places = range(min(map(len, names), default=0))
    place = min(places, key=lambda place: len({parts[place] for parts in names}), default=0)
    for table in tables:
        ended = table.path.stat().st_mtime
        repeats = []
        # They ran one after the other, and the file was written after the last one.
        for repeat, row in reversed([*enumerate(table.rows(), 1)]):
            task = _read_task(table, row, repeat, place, ended)
            if task is None:
                left_out += 1
            else:
                repeats.append(task)
                ended -= task.duration_sec
        tasks += reversed(repeats)
    folder = tables[0].path.resolve().parent
    while _PLAIN_FOLDERS.fullmatch(folder.name) or any(t.component == folder.name for t in tasks):
        folder = folder.parent
    return [Workflow("snakemake", folder.name or "snakemake", tuple(tasks), left_out)]


def _read_task(table: Table, row: Row, repeat: int, place: int, ended: float) -> Task | None:
    ran = row.seconds("s")
    if ran is None:
        return None
    path = table.path.resolve()
    stem = _SUFFIXES.sub("", path.name)
    of_folder = "" if _PLAIN_FOLDERS.fullmatch(path.parent.name) else path.parent.name
    rule = row.text("rule_name") or of_folder or [*stem.split("."), ""][place]
    params = {"threads": row.number("threads")}
    # The sizes of the input files: `{'a.txt': 1.5, 'b.txt': 2.0}`, or a number.
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        sizes = ast.literal_eval(row.text("input_size_mb"))
        total_mb = sum(sizes.values()) if isinstance(sizes, dict) else sizes
        params["input_size_mb"] = read_number(total_mb)
    figures = "/".join(row.cells.values())
    return Task(
        key=f"snakemake/{path}/{repeat}/{figures}",
        component=rule,
        name=f"{rule} ({stem})" if stem != rule else rule,
        status="FINISHED",  # Snakemake writes a benchmark for jobs that ended well
        duration_sec=ran,
        started=max(0.0, ended - ran),
        cpus=params["threads"],
        cpu_sec=row.seconds("cpu_time"),
        peak_mb=row.number("max_rss"),
        disk_read_mb=row.number("io_in"),
        disk_write_mb=row.number("io_out"),
        params={name: value for name, value in params.items() if value is not None},
        tags={"mlflow_perf.wildcards": text} if (text := row.text("wildcards")) else {},
    )
