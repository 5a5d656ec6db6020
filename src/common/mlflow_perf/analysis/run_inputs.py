"""The inputs of a run, as numbers that may predict its memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from mlflow_perf.errors import SettingError
from mlflow_perf.tracking.perf_run import PerfRun

_COUNTER = re.compile(r"ops/(.+)/count")
_MOST_INPUTS = 40


def read_inputs(run: PerfRun) -> dict[str, float]:
    """Return a run's numeric parameters, its counters, and `read_mb`: what its processes read.

    A parameter goes before a counter of the same name.
    """
    found: dict[str, float] = {}
    for index, metrics in sorted(run.nodes.items()):
        for key, value in metrics.items():
            # A timed operation has a total time beside its count; a counter has the count alone.
            counter = _COUNTER.fullmatch(key)
            if counter and f"ops/{counter[1]}/total_ms" not in metrics:
                found[counter[1]] = (found.get(counter[1], 0.0) if index else 0.0) + value
    read = [m["job_io_read_mb"] for m in run.nodes.values() if "job_io_read_mb" in m]
    if read:
        found["read_mb"] = sum(read)
    for name, text in run.params.items():
        try:
            found[name] = float(text)
        except ValueError:
            continue
    usable = {name: value for name, value in found.items() if math.isfinite(value)}
    return dict(sorted(usable.items())[:_MOST_INPUTS])


def parse_inputs(texts: Iterable[str]) -> dict[str, float]:
    """Return `rows=2e6` and the like as numbers by name.

    Raises:
        SettingError: When one is not NAME=NUMBER, or its number is negative or not finite.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            found[name.strip()] = float(value.replace("_", ""))
        except ValueError:
            equals = ""
        if not (equals and name.strip() and 0 <= found[name.strip()] < math.inf):
            raise SettingError(f"--input takes NAME=NUMBER, such as rows=2e6, not {text!r}.")
    return found


def check_inputs(given: Mapping[str, float], known: Iterable[Mapping[str, float]]) -> None:
    """Check that each given input occurs in at least one run.

    Raises:
        SettingError: When no run has an input of that name; the message lists those they have.
    """
    names = {name for inputs in known for name in inputs}
    for name in given:
        if name not in names:
            has = f"they have {', '.join(sorted(names))}" if names else "they have none"
            raise SettingError(f"No run has the input {name!r}; {has}.")
