"""The energy of the CPUs and their memory, from the kernel's RAPL counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import ENERGY_COLUMNS
from mlflow_perf.readers.procfile import ProcFile, read_text
from mlflow_perf.records import Column

_MICROJOULES_IN_WH = 3.6e9
# A package's counter includes its cores and its graphics; its memory has a counter of its own.
# `psys`, where it exists, counts all of them again.
_COUNTED = ("package", "dram")


@dataclass
class _Zone:
    """A counter that goes back to zero at the end of its range, within a minute under load."""

    file: ProcFile
    range_uj: int
    before_uj: int


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
        self._zones: list[_Zone] = []
        self._used_uj = 0
        for folder in sorted(Path(sys, "class", "powercap").glob("intel-rapl:*")):
            if not (read_text(folder / "name") or "").startswith(_COUNTED):
                continue
            try:
                file = ProcFile(folder / "energy_uj")
                range_uj = int(read_text(folder / "max_energy_range_uj") or 0)
                self._zones.append(_Zone(file, range_uj, int(file.read())))
            except (SourceUnavailableError, OSError, ValueError):  # mostly readable by root only
                continue
        if not self._zones:
            raise SourceUnavailableError("No energy counter of the CPUs may be read.")

    def read(self, report: dict[str, float]) -> None:
        """Put the energy used so far into the report."""
        for zone in self._zones:
            now = int(zone.file.read())
            grown = now - zone.before_uj
            if grown < 0:
                # A wrap adds the range; a counter that was above its range was reset.
                grown = grown + zone.range_uj if zone.before_uj <= zone.range_uj else now
            self._used_uj += max(0, grown)
            zone.before_uj = now
        report["cpu_energy_wh"] = self._used_uj / _MICROJOULES_IN_WH

    def close(self) -> None:
        """Close the counters."""
        for zone in self._zones:
            zone.file.close()
