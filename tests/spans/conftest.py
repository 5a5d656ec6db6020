"""Sources for the tests of the spans: hand-made with exact figures, and recordings of real runs."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.spans import import_sources
from mlflow_perf.spans.database.schema import connect
from mlflow_perf.spans.database.store import Store

DATA = Path(__file__).parent / "data"
HOSTILE = 'a"]; system("x") \\ <img onerror=1>\nb'
"""A name with quotes, HTML and a line end."""
RUN = "11111111-2222-3333-4444-555555555555"


def make_monitoring(
    path: Path,
    *,
    run: str = RUN,
    tasks: Iterable[tuple[Any, ...]] = (),
    tries: Iterable[tuple[Any, ...]] = (),
    status: Iterable[tuple[Any, ...]] = (),
    began: str = "2026-11-20 12:00:00.000000",
    completed: str | None = "2026-11-20 12:01:00.000000",
) -> sqlite3.Connection:
    """Write a monitoring.db of Parsl's real schema with one run more.

    Args:
        path: The file.
        run: The run's id.
        tasks: `(task id, function, invoked, returned, depends)`.
        tries: `(task id, try id, host, returned)`.
        status: `(task id, try id, state, time)`.
        began: When the run began.
        completed: When it ended.

    Returns:
        The open connection, committed.
    """
    new = not path.exists()
    db = sqlite3.connect(path)
    if new:
        db.executescript((DATA / "monitoring_schema.sql").read_text("utf-8"))
    db.execute(
        "INSERT INTO workflow VALUES (?, 'flow.py', '1', ?, ?, 'head', 'user', '/home/000', 0, 0)",
        (run, began, completed),
    )
    db.executemany(
        "INSERT INTO task VALUES (?, ?, ?, ?, '0', NULL, '', '', '', '', '', ?, ?, 0, 0)",
        [(t, run, depends, name, inv, ret) for t, name, inv, ret, depends in tasks],
    )
    db.executemany(
        "INSERT INTO try VALUES (?, ?, ?, '0', ?, 'htex', NULL, NULL, ?, '', NULL)",
        [(y, t, run, host, returned) for t, y, host, returned in tries],
    )
    db.executemany(
        "INSERT INTO status VALUES (?, ?, ?, ?, ?)",
        [(t, state, time, run, y) for t, y, state, time in status],
    )
    db.commit()
    return db


def at(second: float) -> str:
    """Return a time of the hand-made run, in seconds after noon."""
    whole, micro = divmod(round(second * 1e6), 1_000_000)
    return f"2026-11-20 12:{whole // 60:02}:{whole % 60:02}.{micro:06}"


def simple_monitoring(path: Path, *, run: str = RUN, tasks: int = 3) -> Path:
    """Write a run in which task n starts at second n, runs one second, and needs task n-1."""
    ids = range(tasks)
    make_monitoring(
        path,
        run=run,
        tasks=[(i, "app", at(i), at(i + 2), str(i - 1) if i else "") for i in ids],
        tries=[(i, 0, "node-1", at(i + 2)) for i in ids],
        status=[
            (i, 0, state, at(i + offset))
            for i in ids
            for state, offset in (
                ("pending", 0.1),
                ("launched", 0.2),
                ("running", 0.5),
                ("running_ended", 1.5),
                ("exec_done", 2.1),
            )
        ],
    ).close()
    return path


def build_database(
    path: Path, subspans: list[Any], facets: list[Any], events: list[Any]
) -> sqlite3.Connection:
    """Create a database of eight spans of two types, with any relations and events."""
    db = connect(path, write=True)
    db.execute("BEGIN")
    store = Store(db)
    scope = store.scope("test")
    ids = {n: store.span(f"kind{n % 2}", scope, n) for n in range(8)}
    store.add_subspans((ids[a], ids[b], b) for a, b in subspans)
    store.add_facets(((ids[a], ids[b]) for a, b in facets), note="same")
    store.add_events((ids[n], time, name) for n, time, name in events)
    db.execute("COMMIT")
    return db


def recorded(kind: str, folder: Path) -> Path:
    """Lay a recording of a real Parsl run into a folder, its database made from its dump."""
    target = folder / kind
    shutil.copytree(DATA / kind, target)
    dump = target / "monitoring.sql"
    if dump.is_file():
        db = sqlite3.connect(target / "monitoring.db")
        db.executescript(dump.read_text("utf-8"))
        db.close()
        dump.unlink()
    return target


class Make:
    """The makers of sources, as a fixture hands them to a test."""

    data = DATA
    run = RUN
    monitoring = staticmethod(make_monitoring)
    simple_monitoring = staticmethod(simple_monitoring)
    recorded = staticmethod(recorded)
    at = staticmethod(at)


@pytest.fixture
def make() -> Make:
    """Give the makers of sources."""
    return Make()


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this machine's own time zone be UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def spans_of(tmp_path: Path, utc: None) -> Callable[..., Path]:
    """Import sources into a fresh database and return it."""

    def load(*sources: Path) -> Path:
        db = tmp_path / "spans.sqlite3"
        import_sources(list(sources), db)
        return db

    return load


@pytest.fixture
def real(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """A recorded run, monitoring and logs."""
    return spans_of(make.recorded("text", tmp_path))


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A database whose names hold quotes, HTML and line ends."""
    db = connect(tmp_path / "hostile.sqlite3", write=True)
    db.execute("BEGIN")
    store = Store(db)
    scope = store.scope(HOSTILE)
    outer = store.span(HOSTILE, scope, "k", name=HOSTILE, host=HOSTILE)
    inner = store.span("inner", scope, HOSTILE)
    store.add_subspans([(outer, inner, HOSTILE)])
    times = ((outer, 1), (outer, 5_000_000), (inner, 2), (inner, 3))
    store.add_events((span, time, HOSTILE) for span, time in times)
    db.execute("COMMIT")
    db.close()
    return tmp_path / "hostile.sqlite3"
