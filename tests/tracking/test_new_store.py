"""A new store is made by one process of mlflow-perf at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_perf.tracking.new_store import (
    find_race_sec,
    is_restarting,
    is_unmade,
    is_wrong_for_ever,
    making_alone,
    ride_out_races,
)


@pytest.fixture
def made(tmp_path: Path, _migrated_store: Path) -> Path:
    """The file of a finished store."""
    return Path(shutil.copy(_migrated_store, tmp_path / "made.db"))


def test_what_is_unmade(tmp_path: Path, made: Path) -> None:
    """No file, an empty one and one without MLflow's last row are; a finished store is not."""
    path = tmp_path / "mlflow.db"
    uri = f"sqlite:///{path}"
    assert is_unmade(uri)
    path.touch()
    assert is_unmade(uri)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
    database.close()
    assert is_unmade(uri)
    assert not is_unmade(f"sqlite:///{made}")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "", "databricks", "sqlite://", "./mlruns"])
def test_only_a_database_file_can_be_unmade(uri: str) -> None:
    """Every other store is for its server, or needs no making."""
    assert not is_unmade(uri)


def test_a_file_that_is_no_database_is_not_unmade(tmp_path: Path) -> None:
    """Nobody waits for it to become one."""
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"not a database" * 1000)
    assert not is_unmade(f"sqlite:///{path}")


def test_one_process_at_a_time_makes_a_store(tmp_path: Path) -> None:
    """Another waits until it is done, leaves no file behind, and goes on after its limit."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    code = (
        "import sys; from mlflow_perf.tracking.new_store import making_alone\n"
        f"with making_alone({uri!r}, timeout_sec=60): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "in\n"
        with making_alone(uri, timeout_sec=0.01):
            assert other.poll() is None
        other.stdin.close()
        with making_alone(uri, timeout_sec=60):
            assert other.wait(60) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no folder from anybody")
def test_a_store_that_cannot_be_made_is_told_at_once() -> None:
    """MLflow would try for a minute."""
    with (
        pytest.raises(OSError, match="/proc/here"),
        making_alone("sqlite:////proc/here/mlflow.db", timeout_sec=60),
    ):
        pass


def test_a_store_that_exists_holds_nobody_off(made: Path) -> None:
    """Then there is nothing to make."""
    uri = f"sqlite:///{made}"
    with making_alone(uri, timeout_sec=60), making_alone(uri, timeout_sec=60):
        pass


def test_races_are_told_from_faults(tmp_path: Path) -> None:
    """What passes by itself is tried again; a full disk is not."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for text in (
        "Online migration expected to match one row",
        "(sqlite3.OperationalError) database is locked",
        '(psycopg2.errors.UndefinedTable) relation "runs" does not',
    ):
        assert find_race_sec(RuntimeError(text), uri) == 60
    assert find_race_sec(OSError("No space left on device"), uri) == 0
    taken = "(sqlite3.IntegrityError) UNIQUE constraint failed: runs.run_uuid"
    assert find_race_sec(RuntimeError(taken), uri) == 0
    taken = '(psycopg2.errors.UniqueViolation) … violates unique constraint "run_pk"'
    assert find_race_sec(RuntimeError(taken), "postgresql://127.0.0.1/mlflow") == 0
    assert find_race_sec(RuntimeError("database is locked"), "http://127.0.0.1:5000") == 0


def test_a_newer_schema_is_no_race(tmp_path: Path, made: Path) -> None:
    """A store of another MLflow stays one; a job waits only where it may be half made."""
    error = RuntimeError("Detected out-of-date database schema (found version 1, expected 2)")
    assert find_race_sec(error, f"sqlite:///{made}") == 0
    assert find_race_sec(error, f"sqlite:///{tmp_path}/mlflow.db") == 60
    assert find_race_sec(error, "postgresql://127.0.0.1/mlflow") == 10


def test_a_database_that_restarts_is_told_from_one_that_fails() -> None:
    """PostgreSQL takes a connection then, and ends it with this text."""
    assert is_restarting(OSError("failed: FATAL:  the database system is starting up"))
    assert is_restarting(OSError("FATAL:  the database system is not yet accepting connections"))
    assert not is_restarting(OSError('FATAL:  database "mlflow" does not exist'))


def test_a_store_that_cannot_be_made_is_said_at_once() -> None:
    """MLflow tries for a minute to make a database where there can be none."""
    with (
        pytest.raises(OSError, match="/proc"),
        making_alone("sqlite:////proc/mlflow.db", timeout_sec=1.0),
    ):
        pass


@pytest.mark.parametrize(
    ("uri", "module", "wrong"),
    [
        ("postgresql://host/runs", "psycopg2", True),
        ("postgresql://host/runs", "html.entities", False),
        ("sqlite:///x.db", "alembic.migration", False),
        ("http://host", "requests.adapters", False),
        ("sqlite:///x.db", "alembic", False),
    ],
)
def test_a_module_that_is_hidden_by_the_jobs_own_is_no_wrong_address(
    uri: str, module: str, wrong: bool
) -> None:
    """A job may have an `html.py` of its own, which hides what MLflow imports; it starts."""
    error = RuntimeError("the import failed")
    error.__cause__ = ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert is_wrong_for_ever(error, uri) == wrong


def test_a_store_that_is_written_just_now_may_be_half_made(tmp_path: Path) -> None:
    """Whoever took it for finished found a database of another version in it."""
    uri, file = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE runs (a)")
        other.commit()
        other.execute("BEGIN EXCLUSIVE")
        assert not is_unmade(uri)
        with making_alone(uri, timeout_sec=1.0):
            handle = os.open(tmp_path, os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(handle)


def test_a_call_is_made_again_while_another_process_makes_the_store(
    tmp_path: Path, made: Path
) -> None:
    """A database that is half made looks like one of another version; a finished one may be one."""
    answers = [RuntimeError(f"Detected out-of-date database schema ({n})") for n in "ab"]

    def ask() -> str:
        if answers:
            raise answers.pop()
        return "found"

    with pytest.raises(RuntimeError, match=r"\(b\)"):
        ride_out_races(ask, f"sqlite:///{made}")
    assert ride_out_races(ask, f"sqlite:///{tmp_path}/mlflow.db") == "found"
    assert answers == []
