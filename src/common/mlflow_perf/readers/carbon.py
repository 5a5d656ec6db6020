"""The node's estimated emissions, through CodeCarbon; no other module imports codecarbon."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mlflow_perf.core.settings import read_setting
from mlflow_perf.errors import MissingDependencyError, SourceUnavailableError
from mlflow_perf.model.columns import CARBON_COLUMNS
from mlflow_perf.readers.background import Background
from mlflow_perf.records import Column

_GRAMS = 1000.0
_WATT_HOURS = 1000.0
_MEASURE_EVERY_SEC = 15.0


class CarbonReader:
    """Emissions of the node and the energy behind them, since this reader was made.

    CodeCarbon models the energy of hardware that has no counter, so this reader exists only where
    the user names a country.

    Args:
        country: Where the node is: the three letters of ISO 3166.
        start_tracker: Takes the country and returns a started tracker; default: CodeCarbon's,
            offline.

    Raises:
        MissingDependencyError: When codecarbon is not installed.
    """

    name = "carbon"
    columns: Sequence[Column] = CARBON_COLUMNS

    def __init__(self, country: str, start_tracker: Callable[[str], Any] | None = None) -> None:
        if start_tracker is None and find_spec("codecarbon") is None:
            raise MissingDependencyError("codecarbon", "carbon")
        start = start_tracker or start_codecarbon
        tracker: Any = None

        def open_source() -> Callable[[], tuple[float, float] | None]:
            nonlocal tracker
            tracker = start(country)
            return ask

        def ask() -> tuple[float, float] | None:
            emitted_kg = tracker.flush()
            # CodeCarbon publishes the energy only at the end.
            used_kwh = getattr(tracker._total_energy, "kWh", None)  # noqa: SLF001 - as said
            if emitted_kg is None or used_kwh is None:
                return None
            return _GRAMS * emitted_kg, _WATT_HOURS * used_kwh

        def stop() -> None:
            tracker.stop()

        # The tracker takes seconds to start, and asks drivers that may hang.
        self._source = Background(open_source, name="perf-carbon", on_close=stop)

    def read(self, report: dict[str, float]) -> None:
        """Put the newest estimate into the report."""
        newest = self._source.newest()
        if newest is not None:
            report["carbon_g"], report["carbon_energy_wh"] = newest

    def close(self) -> None:
        """Stop the tracker."""
        self._source.close()


def start_codecarbon(country: str) -> Any:
    """Return CodeCarbon's offline tracker, started, which writes no file and logs nothing.

    Args:
        country: The three letters of ISO 3166.
    """
    log = logging.getLogger("codecarbon")
    was_disabled, log.disabled = log.disabled, True  # it writes to the job's own output
    try:
        codecarbon = import_module("codecarbon")
        # Later versions deprecate `save_to_file` in favour of `output_methods`.
        known = inspect.signature(codecarbon.EmissionsTracker).parameters
        no_output: dict[str, Any] = (
            {"output_methods": []} if "output_methods" in known else {"save_to_file": False}
        )
        tracker = codecarbon.OfflineEmissionsTracker(
            country_iso_code=country,
            measure_power_secs=_MEASURE_EVERY_SEC,
            tracking_mode="machine",
            log_level="critical",
            allow_multiple_runs=True,
            **no_output,
        )
        tracker.start()
    finally:
        log.disabled = was_disabled
    return tracker


def make_carbon_reader(country: str | None = None) -> CarbonReader:
    """Return the reader for a country.

    Args:
        country: Its three letters; default: those of `MLFLOW_PERF_CARBON`.

    Raises:
        SourceUnavailableError: When no country is given: nothing is estimated then.
        SettingError: When it is not the three letters of a country.
        MissingDependencyError: When codecarbon is not installed.
    """
    country = read_setting("carbon", country)
    if country is None:
        raise SourceUnavailableError("No country is given to estimate emissions for.")
    return CarbonReader(country)
