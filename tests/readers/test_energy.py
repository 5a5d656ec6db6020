"""Energy from recorded RAPL counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.readers.trees import (
    put,
)

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.energy import RaplReader


def zone(sys: Path, name: str, kind: str, energy_uj: int, range_uj: int = 10**9) -> None:
    """Write one RAPL zone."""
    put(sys / "class/powercap" / name / "name", kind + "\n")
    put(sys / "class/powercap" / name / "energy_uj", f"{energy_uj}\n")
    put(sys / "class/powercap" / name / "max_energy_range_uj", f"{range_uj}\n")


def test_energy_of_packages_and_memory_counts_once(tmp_path: Path) -> None:
    """Packages and memory count; cores (within the package) and the platform do not again."""
    names = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram",
             "intel-rapl:1": "package-1", "intel-rapl:2": "psys"}  # fmt: skip
    for name, kind in names.items():
        zone(tmp_path, name, kind, 900_000_000)
    reader = RaplReader(tmp_path)
    report: dict[str, float] = {}
    for name, kind in names.items():
        zone(tmp_path, name, kind, 990_000_000)
    reader.read(report)
    assert report["cpu_energy_wh"] == pytest.approx(3 * 0.025)
    for name, kind in names.items():
        zone(tmp_path, name, kind, 80_000_000)
    reader.read(report)
    assert report["cpu_energy_wh"] == pytest.approx(3 * 0.05)
    reader.close()


def test_energy_that_may_not_be_read_is_absent(tmp_path: Path) -> None:
    """Without counters, or with damaged ones, the source is not there."""
    with pytest.raises(SourceUnavailableError):
        RaplReader(tmp_path)
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    put(tmp_path / "class/powercap/intel-rapl:0/energy_uj", "nonsense")
    with pytest.raises(SourceUnavailableError):
        RaplReader(tmp_path)
