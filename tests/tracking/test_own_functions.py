"""Functions that a job puts in the place of Python's, and calls of ours."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from mlflow.utils import file_utils
from tests.tracking.own_calls import call_as_own

from mlflow_perf.core.temporary import temporary_folder
from mlflow_perf.tracking.own_functions import own_functions


def test_a_job_that_makes_its_identifiers_reproducible_gets_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where two calls of ours go on at a time, and while they do."""
    numbers = itertools.count()
    monkeypatch.setattr(uuid, "uuid4", of_job := lambda: uuid.UUID(int=next(numbers)))
    monkeypatch.setattr(os, "urandom", lambda size: bytes([next(numbers)]) * size)

    def draw() -> list[object]:
        with own_functions():
            first = uuid.uuid4().version, len(set(os.urandom(99))) > 1
        return [first, uuid.uuid4().version, len(set(os.urandom(99))) > 1]

    with own_functions():
        assert call_as_own(draw) == [(4, True), 4, True]
        assert [uuid.uuid4().int, *os.urandom(1), uuid.uuid4().int] == [0, 1, 2]
    assert uuid.uuid4 is of_job
    assert uuid.uuid4().int == 3


def test_what_sleeps_in_a_call_of_ours_moves_no_clock_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with own_functions():
        call_as_own(lambda: time.sleep(0.001))
        time.sleep(5)
    assert slept == [5]


def test_a_folder_of_the_jobs_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has put one in the place of each new one."""
    (tmp_path / "result").touch()
    make: Any = file_utils.TempDir
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_, **__: str(tmp_path))

    def use() -> list[bool]:
        with make() as of_mlflow, temporary_folder() as ours:
            found = [of_mlflow.path(), tempfile.mkdtemp("x", "y", str(tmp_path)), ours]
            return [Path(one).samefile(tmp_path) for one in found]

    with own_functions():
        assert call_as_own(use) == [False] * 3
        assert tempfile.mkdtemp() == str(tmp_path)
    assert (tmp_path / "result").exists()


def test_pythons_own_functions_stay() -> None:
    before = uuid.uuid4, os.urandom, time.sleep, tempfile.mkdtemp
    with own_functions():
        assert (uuid.uuid4, os.urandom, time.sleep, tempfile.mkdtemp) == before
