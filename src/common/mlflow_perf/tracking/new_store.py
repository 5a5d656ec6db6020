"""Lets several processes that need the same new store create it one after the other.

MLflow makes a new database when it is first used, in some forty steps that take seconds. Two
processes that do so at the same time disturb each other, and one of them fails.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from mlflow_perf.core.uris import find_local_database, is_http, is_local

T = TypeVar("T")

_LOOK_EVERY_SEC, _AGAIN_SEC = 0.1, 0.5
# MLflow makes a new database in some forty steps: seconds, and minutes on a very busy machine.
_MAKING_SEC, _MAKING_TURNS, _WORK_SEC = 60.0, 5, 0.2
_RACES = (
    "online migration",
    "already exists",
    "database is locked",
    "no such table",
    "undefinedtable",  # PostgreSQL's, as psycopg names it
    "deadlock detected",
    "duplicate column",
    "unique constraint",
)
# SQLite's and PostgreSQL's words for a run of this id: the job's own `uuid4` gives one twice.
_RUN_IDS = ("runs.run_uuid", "run_pk")
OTHER_SCHEMA = "out-of-date database schema"
"""MLflow's words for a database of another version; it may also be half made."""

_RACE_SEC, _OTHER_SCHEMA_SEC = 60.0, 10.0
# PostgreSQL takes connections then, and refuses each one.
_RESTARTS = tuple(
    f"the database system is {state}"
    for state in (
        "starting up",
        "shutting down",
        "in recovery mode",
        "not yet accepting connections",
    )
)
_WRONG_FOR_EVER = {
    "ArgumentError",  # of SQLAlchemy: not an address
    "NoSuchModuleError",  # of SQLAlchemy: an unknown kind of database
    "UnsupportedModelRegistryStoreURIException",
}


_made: set[tuple[int, int]] = set()  # device and inode of each database that was complete


def is_unmade(uri: str, *, if_locked: bool = False) -> bool:
    """Return whether a store is a database file that does not exist yet, or is being made now.

    Args:
        uri: The store.
        if_locked: The answer for a file that somebody writes: whoever makes it, or uses it.
    """
    file = find_local_database(uri)
    if file is None:
        return False
    try:
        facts = file.stat()
        if not facts.st_size or (facts.st_dev, facts.st_ino) in _made:
            return not facts.st_size
        address = f"{file.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=0.2)) as database:
            # MLflow's last step is to make the default experiment.
            if database.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is None:
                return True
            _made.add((facts.st_dev, facts.st_ino))
            return False
    except FileNotFoundError:
        return True
    except sqlite3.OperationalError as error:
        return "no such table" in str(error) or (if_locked and "locked" in str(error))
    except (OSError, sqlite3.Error):
        return False


@contextlib.contextmanager
def making_alone(uri: str, *, timeout_sec: float = 60.0, is_shared: bool = False) -> Iterator[None]:
    """Hold off the other processes of mlflow-perf that would make the same new store.

    The lock is on the folder of the database, so that it leaves no file; if a folder cannot be
    locked, no process waits.

    Args:
        uri: The store; if it exists, no process waits.
        timeout_sec: Most seconds to wait for the others.
        is_shared: Whether processes wait in an existing database too: they look for a run, and
            create it if there is none.

    Raises:
        OSError: When the database cannot be made there. MLflow would try for a minute.
    """
    file = find_local_database(uri)
    is_new = is_unmade(uri, if_locked=True)
    if file is None or not (is_shared or is_new):
        yield
        return
    folder, handle = file.absolute().parent, -1
    try:
        folder.mkdir(parents=True, exist_ok=True)  # as MLflow would
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        if is_new and not os.access(folder, os.W_OK | os.X_OK):
            raise
    try:
        if handle >= 0 and is_new:
            with tempfile.TemporaryFile(dir=folder):
                pass
        until = time.monotonic() + timeout_sec
        while handle >= 0 and not _lock(handle) and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_SEC)
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def await_new_store(done_within: Callable[[float], bool], uri: str) -> None:
    """Wait while MLflow makes a new local database: nobody can open one that is left half made.

    Args:
        done_within: Waits for the call that makes it, at most some seconds, and returns whether it
            is done.
        uri: The store.
    """
    for _ in range(_MAKING_TURNS):
        before_sec = time.process_time()
        if not is_unmade(uri) or done_within(_MAKING_SEC):
            return
        if time.process_time() - before_sec < _WORK_SEC:  # it waits for something, not for a CPU
            return


def _lock(handle: int) -> bool:
    """Take the lock on an open folder and return whether it was free, or cannot be taken at all."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def find_race_sec(error: BaseException, uri: str) -> float:
    """Return for how many seconds MLflow may fail so while another process makes or uses the store.

    0: that is not the reason.
    """
    text = "" if is_http(uri) else str(error).lower()
    if OTHER_SCHEMA in text:
        if find_local_database(uri) is None:
            return _OTHER_SCHEMA_SEC
        return _RACE_SEC if is_unmade(uri) else 0.0
    is_race = any(race in text for race in _RACES) and not any(key in text for key in _RUN_IDS)
    return _RACE_SEC if is_race else 0.0


def ride_out_races(call: Callable[[], T], uri: str) -> T:
    """Make a call, again while it fails because another process makes or uses the store.

    Args:
        call: Asks the store.
        uri: The store.

    Returns:
        The call's result.

    Raises:
        Exception: What the call raises for another reason, or for longer than such races last.
    """
    began = time.monotonic()
    while True:
        try:
            return call()
        except Exception as error:
            if time.monotonic() - began >= find_race_sec(error, uri):
                raise
            time.sleep(_AGAIN_SEC)


def is_restarting(error: BaseException) -> bool:
    """Return whether MLflow failed because the store's database restarts just now."""
    text = str(error).lower()
    return any(state in text for state in _RESTARTS)


def is_wrong_for_ever(error: BaseException, uri: str) -> bool:
    """Return whether an address fails whatever the moment: its scheme or its driver is unknown.

    Everything else may be well again soon: a full disk, a locked database, a server that refuses.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    # Only other databases need a driver. A job's own `html.py` may hide a module of MLflow's.
    needs_driver = not (is_local(uri) or is_http(uri))
    return any(
        type(one).__name__ in _WRONG_FOR_EVER
        or (needs_driver and isinstance(one, ModuleNotFoundError) and "." not in (one.name or ""))
        for one in chain
    )
