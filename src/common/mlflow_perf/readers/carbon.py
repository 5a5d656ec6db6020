"""What the node emits, as CodeCarbon estimates it: the only module that imports codecarbon.

Imports background, settings and the column table. Made only when a country is given: CodeCarbon
models what has no counter, and that is never done without being asked for.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mlflow_perf.core import settings
from mlflow_perf.errors import MissingDependencyError, SourceUnavailableError
from mlflow_perf.model.columns import CARBON_COLUMNS
from mlflow_perf.readers.background import Background
from mlflow_perf.records import Column

__all__ = ["CarbonReader", "carbon_reader"]

_GRAMS = 1000.0
_WATT_HOURS = 1000.0
_MEASURE_EVERY_SEC = 15.0

OpenTracker = Callable[[str], Any]
"""From a country to a started tracker of CodeCarbon's kind."""


class CarbonReader:
    """Emissions of the node, and the energy that they are of, since this reader was made.

    Args:
        country: Where the node is: the three letters of ISO 3166.
        open_tracker: Starts a tracker; default: CodeCarbon's, offline.

    Raises:
        MissingDependencyError: When codecarbon is not installed.
    """

    name = "carbon"
    columns: Sequence[Column] = CARBON_COLUMNS

    def __init__(self, country: str, open_tracker: OpenTracker | None = None) -> None:
        if open_tracker is None and find_spec("codecarbon") is None:
            raise MissingDependencyError("codecarbon", "carbon")
        self._country, self._open = country, open_tracker or _open_codecarbon
        self._tracker: Any = None
        # It takes seconds to start, and asks drivers that may hang.
        self._source = Background(self._start, name="perf-carbon", on_close=self._stop)

    def _start(self) -> Callable[[], tuple[float, float] | None]:
        tracker = self._tracker = self._open(self._country)

        def ask() -> tuple[float, float] | None:
            emitted_kg = tracker.flush()
            # No figure in public tells the energy before the end.
            used_kwh = getattr(tracker._total_energy, "kWh", None)  # noqa: SLF001 - as said
            if emitted_kg is None or used_kwh is None:
                return None
            return _GRAMS * emitted_kg, _WATT_HOURS * used_kwh

        return ask

    def _stop(self) -> None:
        if self._tracker is not None:
            self._tracker.stop()

    def read(self, report: dict[str, float]) -> None:
        """Put the newest estimate into the report."""
        newest = self._source.newest()
        if newest is not None:
            report["carbon_g"], report["carbon_energy_wh"] = newest

    def close(self) -> None:
        """End the tracker."""
        self._source.close()


def _open_codecarbon(country: str) -> Any:
    log = logging.getLogger("codecarbon")
    was_disabled, log.disabled = log.disabled, True  # it writes to the job's own output
    try:
        codecarbon = import_module("codecarbon")
        tracker = codecarbon.OfflineEmissionsTracker(
            country_iso_code=country,
            measure_power_secs=_MEASURE_EVERY_SEC,
            tracking_mode="machine",
            **_no_output(codecarbon),
            log_level="critical",
            allow_multiple_runs=True,
        )
        tracker.start()
    finally:
        log.disabled = was_disabled
    return tracker


def _no_output(codecarbon: Any) -> dict[str, Any]:
    """Return the arguments that keep CodeCarbon from writing files; later versions changed them."""
    known = inspect.signature(codecarbon.EmissionsTracker).parameters
    return {"output_methods": []} if "output_methods" in known else {"save_to_file": False}


def carbon_reader(country: str | None = None) -> CarbonReader:
    """Return the reader for a country.

    Args:
        country: Its three letters; default: that of `MLFLOW_PERF_CARBON`.

    Raises:
        SourceUnavailableError: When no country is given: nothing is estimated then.
        SettingError: When it is no country's three letters.
        MissingDependencyError: When codecarbon is not installed.
    """
    country = settings.setting("carbon", country)
    if country is None:
        raise SourceUnavailableError("No estimate of emissions was asked for.")
    return CarbonReader(country)
