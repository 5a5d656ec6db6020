"""The choice of readers on this machine, with those that users add."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mlflow_perf import readers
from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers import Reader, add_reader, default_readers
from mlflow_perf.testing import FakeReader


def test_this_machine_opens_what_it_has() -> None:
    """The default readers never name a source twice."""
    readers = default_readers()
    names = [reader.name for reader in readers]
    for reader in readers:
        reader.close()
    assert len(names) == len(set(names))
    assert {"cpu", "memory", "processes", "limits"} <= set(names)


def test_default_readers_give_the_columns_of_the_contract() -> None:
    """On this machine the default readers give every column that the interface promises."""
    report: dict[str, float] = {}
    for reader in default_readers():
        reader.read(report)
        reader.read(report)
        reader.close()
    promised = {
        "cpu_pct_per_cpu_avg", "cpu_pct_per_cpu_min", "cpu_pct_per_cpu_max", "mem_percent",
        "disk_usage_percent", "net_io_lo_sent_mb", "net_io_ext_sent_mb", "net_io_lo_recv_mb",
        "net_io_ext_recv_mb",
    }  # fmt: skip
    # Two reads within one clock tick of the kernel give no utilisation.
    assert promised - {n for n in promised if n.startswith("cpu_pct")} <= report.keys()


def test_the_readers_of_gpus_ask_the_tree_whose_a_process_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This process is the job's, the first process of the machine is not."""
    found: list[Callable[[int], bool | None]] = []

    def note(root_pid: int | None, owns: Callable[[int], bool | None]) -> tuple[()]:
        found.append(owns)
        return ()

    monkeypatch.setattr("mlflow_perf.readers.defaults._gpu_factories", note)
    opened = default_readers()
    (owns,) = found
    assert (owns(os.getpid()), owns(1)) == (True, False)
    for reader in opened:
        reader.close()


def test_an_added_reader_is_made_once_for_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factory that is added twice is called once; its missing source costs nothing."""
    monkeypatch.setattr("mlflow_perf.readers.defaults._added", [])
    made: list[int] = []

    def missing() -> Reader:
        made.append(1)
        raise SourceUnavailableError("not here")

    add_reader(missing)
    add_reader(missing)
    for reader in default_readers():
        reader.close()
    assert made == [1]


def test_a_bad_reader_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a factory does, the other sources are there."""
    makes: list[Any] = [
        lambda: 1 / 0,
        lambda: sys.exit(3),
        lambda: None,
        lambda: FakeReader([{}], name="given"),
    ]
    monkeypatch.setattr("mlflow_perf.readers.defaults._added", makes)
    opened = readers.default_readers()
    assert opened[-1].name == "given"
    assert len(opened) > 1
    for reader in opened:
        reader.close()
