"""Emissions through CodeCarbon: only when asked for, once per node, absent otherwise."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mlflow_perf.core.settings import read_setting
from mlflow_perf.errors import MissingDependencyError, SettingError
from mlflow_perf.model.metrics import find_metric
from mlflow_perf.model.summary import summarise, summarise_run
from mlflow_perf.readers import carbon, default_readers
from mlflow_perf.readers.carbon import CarbonReader, make_carbon_reader


class Tracker:
    """A tracker that adds a gram and two watt-hours at each answer."""

    def __init__(self) -> None:
        self.asked, self.stopped = 0, threading.Event()

    def flush(self) -> float:
        self.asked += 1
        return self.asked / 1000

    @property
    def _total_energy(self) -> SimpleNamespace:
        return SimpleNamespace(kWh=self.asked / 500)

    def stop(self) -> None:
        self.stopped.set()


def test_emissions_and_their_energy_are_counters() -> None:
    """CodeCarbon's kilograms and kilowatt-hours become grams and watt-hours; the end stops it."""
    tracker = Tracker()
    countries: list[str] = []

    def start(country: str) -> Tracker:
        countries.append(country)
        return tracker

    reader = CarbonReader("FRA", start)
    reader._source._patience_sec = 10.0
    reports = [{"elapsed_sec": float(i)} for i in range(3)]
    for report in reports:
        reader.read(report)
    reader.close()
    assert countries == ["FRA"]
    assert reports[-1]["carbon_g"] == pytest.approx(3.0)
    assert reports[-1]["carbon_energy_wh"] == pytest.approx(6.0)
    assert tracker.stopped.is_set()
    metrics = summarise(reports, counters_from_first=True)
    assert metrics["node_carbon_g"] == pytest.approx(2.0)
    assert summarise_run([metrics, metrics])["run_carbon_g"] == pytest.approx(4.0)
    assert not [key for key in metrics if find_metric(key) is None and "carbon_g" in key]


def test_a_tracker_that_cannot_be_opened_costs_only_its_figures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It costs one warning and its own values; the job goes on."""
    reader = CarbonReader("FRA", lambda _: 1 / 0)
    reader._source._thread.join(10)
    report: dict[str, float] = {}
    reader.read(report)
    reader.close()
    assert report == {}
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


def test_nothing_is_estimated_unless_asked_for() -> None:
    """Without a country there is no reader."""
    readers = default_readers()
    assert "carbon" not in {reader.name for reader in readers}
    for reader in readers:
        reader.close()


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for without the library, the error names the extra."""
    monkeypatch.setenv("MLFLOW_PERF_CARBON", "fra")
    monkeypatch.setattr(carbon, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="carbon"):
        make_carbon_reader()


@pytest.mark.parametrize("wrong", ["FR", "France", "12A", "Ñña"])
def test_a_country_has_three_letters(wrong: str) -> None:
    """Anything else is a SettingError of one line."""
    assert read_setting("carbon", " fra ") == "FRA"
    with pytest.raises(SettingError, match="three letters"):
        read_setting("carbon", wrong)


@pytest.mark.parametrize(
    ("tracker", "quiet"),
    [
        (lambda save_to_file=True: None, {"save_to_file": False}),
        (lambda save_to_file=True, output_methods=None: None, {"output_methods": []}),
    ],
)
def test_codecarbon_writes_no_file_and_gets_no_deprecated_argument(
    tracker: Callable[..., None], quiet: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that knows `output_methods` does not get the older `save_to_file`."""
    given: dict[str, object] = {}

    def start(**options: object) -> SimpleNamespace:
        given.update(options)
        return SimpleNamespace(start=lambda: None)

    library = SimpleNamespace(EmissionsTracker=tracker, OfflineEmissionsTracker=start)
    monkeypatch.setitem(sys.modules, "codecarbon", library)
    carbon.start_codecarbon("FRA")
    assert {name: given.get(name) for name in ("save_to_file", "output_methods")} == {
        "save_to_file": None, "output_methods": None, **quiet,
    }  # fmt: skip
    assert given["country_iso_code"] == "FRA"


@pytest.mark.e2e
@pytest.mark.filterwarnings("error::DeprecationWarning:codecarbon")
def test_the_real_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """CodeCarbon itself, offline: a small positive estimate that grows."""
    pytest.importorskip("codecarbon")
    monkeypatch.setenv("MLFLOW_PERF_CARBON", "FRA")
    reader = make_carbon_reader()
    reader._source._patience_sec = 60.0
    first: dict[str, float] = {}
    reader.read(first)
    time.sleep(0.1)
    second: dict[str, float] = {}
    reader.read(second)
    reader.close()
    assert 0 <= first["carbon_g"] < second["carbon_g"] < 10
    assert second["carbon_energy_wh"] > 0


def test_a_missing_library_is_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning about a missing library has no traceback."""
    monkeypatch.setattr(carbon, "find_spec", lambda name: None)
    for reader in default_readers(carbon="FRA"):
        reader.close()
    (record,) = (r for r in caplog.records if "carbon" in r.getMessage())
    assert "pip install 'mlflow-perf[carbon]'" in record.getMessage()
    assert record.exc_info is None
