"""Importing sources into a database."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from mlflow_perf import spans


def test_two_first_imports_at_once(make: Any, tmp_path: Path, utc: None) -> None:
    """Two that make the same database at once both succeed, one after the other."""
    sources = [make.simple_monitoring(tmp_path / f"{n}.db", run=f"run-{n}") for n in range(2)]
    failed: list[Exception] = []

    def load(source: Path) -> None:
        try:
            spans.import_sources(source, tmp_path / "db")
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failed.append(error)

    threads = [threading.Thread(target=load, args=(s,)) for s in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [row["spans"] for row in spans.types(tmp_path / "db")] == [6, 6, 2]


def test_names_of_files_may_hold_anything(make: Any, tmp_path: Path, utc: None) -> None:
    """Question marks, hashes, per cents and spaces in a path are no part of SQLite's URI."""
    folder = tmp_path / "a?mode=rwc#50% done ü"
    folder.mkdir()
    source = make.simple_monitoring(folder / "moni?tor#ing %41.db")
    spans.import_sources(source, folder / "sp?an#s.db")
    assert len(spans.types(folder / "sp?an#s.db")) == 3
    assert sorted(p.name for p in folder.iterdir()) == ["moni?tor#ing %41.db", "sp?an#s.db"]
