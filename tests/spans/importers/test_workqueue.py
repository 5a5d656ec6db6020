"""Work Queue's transaction log, compared with a regular expression on each line."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf.spans import import_sources, sql

_LINE = re.compile(
    r"(\d{1,18})\s+\S+\s+(?:TASK\s+(\d{1,18})\s+(\S+)|TRANSFER\s+(\S+)\s+(\d{1,18}))(?=\s|$)"
)
_HEAD = "1680774973462610 372 MANAGER START\n"
_words = st.sampled_from(
    ["TASK", "TRANSFER", "INPUT", "OUTPUT", "RUNNING", "DONE", "WAITING", "1", "25", "-3",
     "1795196931445073", "9" * 18, "9" * 19, "x" * 65, "ä", "", "\t", "#"]
)  # fmt: skip
_time = st.integers(0, 10**16)
_shaped = st.builds("{} 7 TASK {} {} {}".format, _time, st.integers(0, 10**6), _words, _words)
_moved = st.builds("{} 7 TRANSFER {} {} {}".format, _time, _words, st.integers(0, 99), _words)
_lines = st.lists(st.one_of(_shaped, _moved), max_size=12)


@settings(max_examples=40, deadline=None)
@given(_lines)
def test_every_line_of_a_task_or_a_transfer_is_an_event(lines: list[str]) -> None:
    """Each line is an event of its task, or is counted as not read."""
    with tempfile.TemporaryDirectory() as folder:
        log, db = Path(folder) / "transaction_log", Path(folder) / "db"
        log.write_text(_HEAD + "".join(line + "\n" for line in lines), "utf-8")
        (result,) = import_sources(log, db)
        rows = sql(
            db,
            "SELECT s.key, e.time_us, t.text FROM event_row e JOIN span_row s ON s.id = e.span_id"
            " JOIN string t ON t.id = e.type_id",
        )
    matches = [match for line in lines if (match := _LINE.match(line))]
    expected = [
        (int(task or of), int(time), state or f"TRANSFER_{direction}")
        for time, task, state, direction, of in (match.groups() for match in matches)
    ]
    assert Counter(tuple(row.values()) for row in rows) == Counter(expected)
    assert sum(result.unread.values()) == len(lines) - len(matches)


def test_a_task_is_part_of_the_worker_at_its_address(tmp_path: Path) -> None:
    """A task's address names the worker that connected from there."""
    (tmp_path / "transaction_log").write_text(
        _HEAD
        + "1680774973462611 372 WORKER worker-a 10.0.0.1:60778  CONNECTION\n"
        + "1680774973462612 372 WORKER worker-a RESOURCES {}\n"
        + "1680774973462613 372 TASK 1 RUNNING 10.0.0.1:60778  FIRST_RESOURCES {}\n"
        + "1680774973462614 372 TASK 2 RUNNING 10.0.0.9:60778  FIRST_RESOURCES {}\n"
    )
    import_sources(tmp_path / "transaction_log", tmp_path / "db")
    query = (
        "SELECT w.name, w.host, t.key FROM subspan JOIN interval w ON w.uuid = superspan_uuid"
        " JOIN interval t ON t.uuid = subspan_uuid"
    )
    found = sql(tmp_path / "db", query)
    assert found == [{"name": "worker-a", "host": "10.0.0.1", "key": 1}]
