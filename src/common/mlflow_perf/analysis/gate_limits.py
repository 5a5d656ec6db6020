"""What a gate allows: limits as they are written, and what they mean. Imports figures."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from mlflow_perf.analysis import metric_text
from mlflow_perf.errors import SettingError

__all__ = ["Limit", "parse_limit"]

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
            itself. Never negative where it is relative to the base.
        upward: Whether it bounds the value from above.
        relative: Whether it is relative to the base.
        percent: Whether `size` is in per cent of the base.
        step: The only step that it holds for; None for every step.
    """

    text: str
    key: str
    size: float
    upward: bool
    relative: bool
    percent: bool
    step: str | None = None

    def bound(self, base: float | None) -> float | None:
        """Return the value that must not be passed; None where it needs a base and has none."""
        if not self.relative:
            return self.size
        if base is None:
            return None
        room = self.size / 100.0 * abs(base) if self.percent else self.size
        return base + room if self.upward else base - room

    def holds(self, value: float, bound: float) -> bool:
        """Return whether a value keeps within a bound, up to the rounding of floats."""
        slack = 1e-9 * max(abs(value), abs(bound))
        return value <= bound + slack if self.upward else value >= bound - slack


def parse_limit(text: str) -> Limit:
    """Return the limit that a text says.

    `KEY=+10%` may rise by 10% of the base, `KEY=-10%` may fall by 10%, `KEY=+5` may rise by 5
    units, `KEY=90` may not pass 90 (on the side that is worse for this metric), `KEY<=90` and
    `KEY>=50` name the side. `STEP:KEY=…` holds for one step of a workflow.

    Raises:
        SettingError: When it is none of these.
    """
    match = _LIMIT.fullmatch(text.strip())
    if match is None or (match["percent"] and not match["sign"]):
        raise SettingError(
            f"The limit {text!r} cannot be read. Write KEY=+10% (may rise by 10%), KEY=-10% "
            "(may fall by 10%), KEY=+5 (may rise by 5), KEY=90, KEY<=90 or KEY>=50."
        )
    if match["operator"] != "=" and match["sign"]:
        raise SettingError(f"The limit {text!r} has a sign: {match['operator']} takes a value.")
    step, _, key = match["key"].strip().rpartition(":")
    size = float(match["number"])
    if not math.isfinite(size):
        raise SettingError(f"The limit {text!r} is not a finite number.")
    return Limit(
        text.strip(),
        key.strip(),
        size,
        _is_upward(key.strip(), match["operator"], match["sign"]),
        relative=bool(match["sign"]),
        percent=bool(match["percent"]),
        step=step.strip() or None,
    )


def _is_upward(key: str, operator: str, sign: str) -> bool:
    if sign:
        return sign == "+"
    if operator != "=":
        return operator == "<="
    return metric_text.find_direction(key) != "higher"
