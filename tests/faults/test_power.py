"""The power goes: what the disk was made to keep is at most ten seconds old, at any second.

No machine is switched off here. In its place stands a disk that forgets whatever it was not told to
keep: the bytes of a file since its last `fsync`, and a name since the last `fsync` of its folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.publish.test_journal import new_journal, rows

import mlflow_perf.publish.recovery_checks
from mlflow_perf.core import originals
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.columns import lookup_kind
from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary
from mlflow_perf.publish.recovery import read_journal

if TYPE_CHECKING:
    from tests.faults.conftest import Fault

BOUND_SEC = 10


class ForgetfulDisk:
    """Notes what each `fsync` makes the disk keep.

    Args:
        folder: The folder.
        names: When it keeps a name: `late`, with the folder's `fsync`, or `at once`, before the
            bytes of the file, as a file system with a journal of its own may.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, names: str) -> None:
        self._folder = folder
        self._at_once = names == "at once"
        self._names: dict[str, int] = {}
        self._content: dict[int, bytes] = {}
        self._held: list[int] = []
        self._fsync = os.fsync
        monkeypatch.setattr(originals.os, "fsync", self._keep)

    def _keep(self, handle: int) -> None:
        facts = os.fstat(handle)
        self._held.append(os.dup(handle))  # so that no other file gets its number
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if stat.S_ISDIR(facts.st_mode):
            self._names = _names_in(place)
        else:
            self._content[facts.st_ino] = place.read_bytes()

    def after_the_cut(self) -> dict[str, bytes]:
        """Return the files that the folder would hold, as they would be."""
        names = _names_in(self._folder) if self._at_once else self._names
        return {name: self._content.get(file, b"") for name, file in names.items()}

    def close(self) -> None:
        """Let go of the files."""
        for handle in self._held:
            os.close(handle)


def _names_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


class Seconds:
    """Stands in for the journal's event: waiting lets simulated seconds pass."""

    def __init__(self, most: int, each: Callable[[int], None]) -> None:
        self.now = 0
        self._most = most
        self._each = each

    def wait(self, timeout_sec: float) -> bool:
        """Let the seconds pass and tell whether it was the last."""
        for _ in range(int(timeout_sec)):
            self._each(self.now)
            self.now += 1
        return self.now >= self._most


@pytest.mark.parametrize("names", ["late", "at once"])
def test_at_most_ten_seconds_are_missing(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: str
) -> None:
    """Whenever the power goes, the journal that is left lacks ten seconds or fewer."""
    disk = ForgetfulDisk(monkeypatch, tmp_path, names)
    series, summary = BoundedSeries(50, kind=lookup_kind), RunningSummary(kind=lookup_kind)

    def snapshot() -> dict[str, object]:
        return {"summary": summary.state(), "columns": series.columns()}

    journal = new_journal(tmp_path, snapshot=snapshot, max_rows=50)
    missing = []

    def second(now: int) -> None:
        (report,) = rows(1, now)
        series.append(report)
        summary.add(report)
        journal.append(report)
        left = [data for name, data in disk.after_the_cut().items() if name.endswith(".journal")]
        kept = [end_of(data) for data in left]
        missing.append(now - max(kept, default=-1.0))

    journal._ended = Seconds(400, second)  # type: ignore[assignment]
    journal._run()
    assert max(missing) <= BOUND_SEC, [n for n, m in enumerate(missing) if m > BOUND_SEC][:5]
    disk.close()
    assert journal._file is not None
    journal._file.close()
    fault(
        f"power loss, names kept {names}",
        "recover logs it after the restart",
        f"{max(missing):g} s",
    )


def end_of(data: bytes) -> float:
    """Return the last second that a journal tells of; -1 where it tells of none."""
    try:
        return read_journal(data)[0].document.duration_sec or 0.0
    except DocumentError:
        return -1.0


def test_the_cause_is_told_from_another_death(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A journal of an earlier start of this machine says so."""
    journal = new_journal(tmp_path)
    data = journal.path.read_bytes()
    journal.remove()
    assert "killed" in read_journal(data)[1]
    monkeypatch.setattr(mlflow_perf.publish.recovery_checks, "boot_id", lambda: "another")
    assert read_journal(data)[1] == "the machine went down"
