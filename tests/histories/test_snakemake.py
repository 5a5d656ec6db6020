"""Snakemake's benchmark files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlflow_perf.histories.reading import read_histories

HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time"
LINE = "1.93\t0:00:01\t72.25\t76.64\t63.34\t63.64\t0.03\t0.00\t80.0\t1.50"
MORE = "\tjobid\trule_name\twildcards\tthreads\tinput_size_mb"


def test_rules_are_found_by_column_folder_or_name(tmp_path: Path) -> None:
    """Each repeat is a task of its own, and a missing figure is not 0."""
    folder = tmp_path / "flow" / "benchmarks"
    (folder / "align").mkdir(parents=True)
    (folder / "align" / "A.tsv").write_text(f"{HEADER}\n{LINE}\n")
    (folder / "A.sort.txt").write_text(f"{HEADER}\n{LINE}\n{LINE}\n")
    blank = "\t".join(["2.0", "0:00:02", *["-"] * 8])
    (folder / "B.sort.txt").write_text(f"{HEADER}\n{blank}\n")
    inputs = "1\tmap\t{'s': 'C'}\t2\t{'in/4.txt': 1.5, 'b': 2.0}"
    (folder / "C.x.txt").write_text(f"{HEADER}{MORE}\n{LINE}\t{inputs}\n")
    (folder / "notes.txt").write_text("nothing of Snakemake\n")
    (workflow,) = read_histories([folder])
    assert workflow.name == "flow"
    assert sorted(t.component for t in workflow.tasks) == ["align", "map", *["sort"] * 3]
    extended = next(t for t in workflow.tasks if t.component == "map")
    assert extended.params == {"threads": 2.0, "input_size_mb": 3.5}
    assert (extended.peak_mb, extended.cpu_sec, extended.cpus) == (72.25, 1.5, 2.0)
    missing = next(t for t in workflow.tasks if t.duration_sec == 2.0)
    assert set(missing.metrics) == {"duration_sec"}
    assert len({t.key for t in workflow.tasks}) == 5


def test_repeats_ran_one_after_the_other(tmp_path: Path) -> None:
    """The file is written after the last one."""
    path = tmp_path / "a.tsv"
    path.write_text(f"{HEADER}\n{LINE}\n{LINE.replace('1.93', '5.0')}\n")
    os.utime(path, (100.0, 100.0))
    (workflow,) = read_histories([path])
    assert [(t.started, t.duration_sec) for t in workflow.tasks] == [(93.07, 1.93), (95.0, 5.0)]


@pytest.mark.parametrize("sizes", ["9" * 400, "{'a': 1e999}", "(" * 3000, "{'a': 'b'}", "1j"])
def test_odd_sizes_of_inputs_are_left_out(tmp_path: Path, sizes: str) -> None:
    """A column that is no finite number costs the task nothing else."""
    (tmp_path / "A.x.txt").write_text(f"{HEADER}{MORE}\n{LINE}\t1\tmap\t{{}}\t2\t{sizes}\n")
    (workflow,) = read_histories([tmp_path])
    assert [task.params for task in workflow.tasks] == [{"threads": 2.0}]
