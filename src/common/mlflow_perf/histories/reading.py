"""Recognise the files of other workflow systems by their heading line, and read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from mlflow_perf.errors import SettingError
from mlflow_perf.histories.nextflow import is_trace, read_trace
from mlflow_perf.histories.sacct import is_accounting, read_accounting
from mlflow_perf.histories.snakemake import is_benchmark, read_benchmarks
from mlflow_perf.histories.table import Table, open_table
from mlflow_perf.histories.tasks import Workflow

_Reader = Callable[[Sequence[Table]], list[Workflow]]
_READERS: tuple[tuple[Callable[[Table], bool], _Reader], ...] = (
    (is_trace, read_trace),
    (is_benchmark, read_benchmarks),
    (is_accounting, read_accounting),
)
_ENDINGS = (".tsv", ".txt", ".csv", ".benchmark", ".bench")


def read_histories(paths: Iterable[Path], *, name: str | None = None) -> list[Workflow]:
    """Return the workflows in files: Nextflow traces, Snakemake benchmarks, sacct's output.

    Args:
        paths: Files, and folders, whose recognised files are read.
        name: Name of the workflows instead of their own.

    Raises:
        SettingError: A file cannot be read or is of none of these kinds, a line of it is broken, or
            nothing in it ran.
    """
    found: dict[int, list[Table]] = {}
    for path in paths:
        inside = sorted(p for p in path.rglob("*") if p.suffix in _ENDINGS) if path.is_dir() else []
        for file in inside or [path]:
            if path.is_dir() and not inside:
                raise SettingError(f"{path} holds no file that ends in {', '.join(_ENDINGS)}.")
            table = open_table(file)
            kind = next((i for i, (is_it, _) in enumerate(_READERS) if is_it(table)), None)
            if kind is not None:
                found.setdefault(kind, []).append(table)
            elif not inside:
                raise SettingError(
                    f"{file}, line 1: is no heading line of a Nextflow trace, a Snakemake "
                    "benchmark, or sacct --parsable2 (with JobID, State and Elapsed)."
                )
    workflows = [w for kind, tables in sorted(found.items()) for w in _READERS[kind][1](tables)]
    if not any(workflow.tasks for workflow in workflows):
        raise SettingError(f"No task that ended is in {', '.join(str(path) for path in paths)}.")
    return [replace(w, name=name or w.name) for w in workflows if w.tasks]
