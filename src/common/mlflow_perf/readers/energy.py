"""The energy of the CPUs and their memory, from the kernel's RAPL counters.

Imports procfile and the column table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import ENERGY_COLUMNS
from mlflow_perf.readers.procfile import ProcFile, read_text
from mlflow_perf.records import Column

__all__ = ["RaplReader"]

_MICROJOULES_IN_WH = 3.6e9
# A package counts its cores and its graphics too; its memory counts apart. `psys`, where it is,
# counts all of them again.
_COUNTED = ("package", "dram")


class RaplReader:
    """Energy of all CPU packages and their memory, since this reader was made.

    Args:
        sys: Where sysfs is mounted.

    Raises:
        SourceUnavailableError: When there is no counter, or none that may be read.
    """

    name = "energy"
    columns: Sequence[Column] = ENERGY_COLUMNS

    def __init__(self, sys: Path | str = "/sys") -> None:
        self._counters = [
            counter
            for zone in sorted(Path(sys, "class", "powercap").glob("intel-rapl:*"))
            if (read_text(zone / "name") or "").startswith(_COUNTED)
            and (counter := _open(zone)) is not None
        ]
        if not self._counters:
            raise SourceUnavailableError("No energy counter of the CPUs may be read.")

    def read(self, report: dict[str, float]) -> None:
        """Put the energy so far into the report."""
        used_uj = sum(counter.used_uj() for counter in self._counters)
        report["cpu_energy_wh"] = used_uj / _MICROJOULES_IN_WH

    def close(self) -> None:
        """Close the counters."""
        for counter in self._counters:
            counter.close()


class _Counter:
    """One zone's counter, which goes back to zero at its range's end, within the minute."""

    def __init__(self, file: ProcFile, range_uj: int) -> None:
        self._file, self._range_uj = file, range_uj
        self._before = int(file.read())
        self._used_uj = 0

    def used_uj(self) -> int:
        now = int(self._file.read())
        grown = now - self._before
        if grown < 0:
            # A wrap adds the range; a counter that is above it was reset instead.
            grown = grown + self._range_uj if self._before <= self._range_uj else now
        self._used_uj += max(0, grown)
        self._before = now
        return self._used_uj

    def close(self) -> None:
        self._file.close()


def _open(zone: Path) -> _Counter | None:
    try:
        return _Counter(
            ProcFile(zone / "energy_uj"), int(read_text(zone / "max_energy_range_uj") or 0)
        )
    except (SourceUnavailableError, OSError, ValueError):  # forbidden to all but root, mostly
        return None
