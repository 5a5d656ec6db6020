"""The limits of a gate: their text and their meaning."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlflow_perf.analysis.metric_text import find_direction
from mlflow_perf.analysis.step_runs import StepRuns
from mlflow_perf.core.format import suggest
from mlflow_perf.errors import SettingError

_AUTO = re.compile(r"(?:(?P<key>[^=<>]+?)\s*=\s*)?auto")
_AUTO_KEY = "duration_sec"
_AUTO_LEAST_PCT = 5.0
_AUTO_DEVIATIONS = 3.0
AUTO_RUNS = 3
"""With fewer runs of the base, their noise is not known."""

_LIMIT = re.compile(
    r"(?P<key>[^=<>]+?)\s*(?P<operator><=|>=|=)\s*"
    r"(?P<sign>[+-]?)(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(?P<percent>%?)"
)


@dataclass(frozen=True)
class Limit:
    """One limit of a gate.

    Attributes:
        text: As it was written.
        key: Key of the metric.
        size: How far the new value may go: per cent of the base, units from the base, or the value
            itself. Never negative if it is relative to the base.
        upward: Whether it bounds the value from above.
        relative: Whether it is relative to the base.
        percent: Whether `size` is in per cent of the base.
        step: The only step that it applies to; None for every step.
        is_auto: Whether `size` is still to be taken from the noise of the base.
    """

    text: str
    key: str
    size: float
    upward: bool
    relative: bool
    percent: bool
    step: str | None = None
    is_auto: bool = False

    def fit(self, base: Sequence[float]) -> Limit | None:
        """Return the limit with its size from the base's noise; None if that has too few runs.

        It allows three mean deviations of the base's runs, and at least 5%.
        """
        if not self.is_auto:
            return self
        if len(base) < AUTO_RUNS:
            return None
        middle = statistics.median(base)
        deviation = statistics.fmean(abs(value - middle) for value in base)
        noise_pct = 100.0 * _AUTO_DEVIATIONS * deviation / abs(middle) if middle else 0.0
        size = round(max(_AUTO_LEAST_PCT, noise_pct), 1)
        sign = "+" if self.upward else "-"
        return replace(self, text=f"{self.text} ({sign}{size:g}%)", size=size, is_auto=False)

    def bound(self, base: float | None) -> float | None:
        """Return the value that must not be passed; None if it needs a base and has none."""
        if not self.relative:
            return self.size
        return None if base is None else self.move(base)

    def move(self, base: float) -> float:
        """Return the worst value that a relative limit allows for a value of the base."""
        room = self.size / 100.0 * abs(base) if self.percent else self.size
        return base + room if self.upward else base - room

    def holds(self, value: float, bound: float) -> bool:
        """Return whether a value keeps within a bound, up to the rounding of floats."""
        slack = 1e-9 * max(abs(value), abs(bound))
        return value <= bound + slack if self.upward else value >= bound - slack


def parse_limit(text: str) -> Limit:
    """Return the limit that a text describes.

    `KEY=+10%` may rise by 10% of the base, `KEY=-10%` may fall by 10%, `KEY=+5` may rise by 5
    units, `KEY=90` may not pass 90 (on the side that is worse for this metric), `KEY<=90` and
    `KEY>=50` name the side. `KEY=auto` allows the variation of the base's own runs; `auto` is
    `duration_sec=auto`. `STEP:KEY=…` applies to one step of a workflow.

    Raises:
        SettingError: When the text is none of these.
    """
    text = text.strip()
    auto, match = _AUTO.fullmatch(text), _LIMIT.fullmatch(text)
    if auto is not None:
        key, operator, sign, size, percent = auto["key"] or _AUTO_KEY, "=", "", 0.0, True
    elif match is not None and (match["sign"] or not match["percent"]):
        key, operator, sign = match["key"], match["operator"], match["sign"]
        size, percent = float(match["number"]), bool(match["percent"])
    else:
        raise SettingError(
            f"The limit {text!r} cannot be read. Write KEY=+10% (may rise by 10%), KEY=-10% "
            "(may fall by 10%), KEY=+5 (may rise by 5), KEY=90, KEY<=90, KEY>=50 or KEY=auto."
        )
    if operator != "=" and sign:
        raise SettingError(f"The limit {text!r} has a sign: {operator} takes a value.")
    if not math.isfinite(size):
        raise SettingError(f"The limit {text!r} is not a finite number.")
    step, colon, key = (part.strip() for part in key.rpartition(":"))
    if not key or (colon and not step):
        raise SettingError(f"The limit {text!r} names no metric, or no step: write STEP:KEY=+10%.")
    upward = find_direction(key) != "higher"
    if sign or operator != "=":
        upward = "+" in sign or operator == "<="
    is_auto = auto is not None
    relative = is_auto or bool(sign)
    return Limit(text, key, size, upward, relative, percent, step or None, is_auto)


def resolve_limit(limit: Limit, sides: Sequence[StepRuns]) -> Limit:
    """Return the limit with its step and metric found in some run: a typing error must not pass."""
    keys: dict[str, set[str]] = {}
    for side in sides:
        for step, run in side.steps.items():
            keys.setdefault(step, set()).update(run.metric_keys)
    whole_key = f"{limit.step}:{limit.key}"
    if limit.step is not None and any(whole_key in known for known in keys.values()):
        # The name of an operation may contain a colon.
        return replace(limit, key=whole_key, step=None)
    kind, name, known = "metric", limit.key, set().union(*keys.values())
    if limit.step is not None:
        known = keys.get(limit.step, set())
        if limit.step not in keys:
            kind, name, known = "step", limit.step, set(keys)
    if name in known:
        return limit
    hint = suggest(name, known)
    raise SettingError(f"No run has the {kind} {name!r} of the limit {limit.text!r}{hint}")
