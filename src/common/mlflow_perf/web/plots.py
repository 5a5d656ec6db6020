"""Plots as plain data: places in per cent of a box, which the template fills with HTML.

Text keeps its size on a phone, each dot is a link, and no script is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from mlflow_perf.core.format import number, quantity

_HOUR, _DAY = 3600.0, 86400.0
_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, _HOUR, 2 * _HOUR, 6 * _HOUR,
                12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY, 91 * _DAY,
                365 * _DAY, 3650 * _DAY)  # fmt: skip
_TICKS = 5
_MB_PER_GB = 1024.0
_LEAST = 1e-300  # smaller numbers have no ratios


@dataclass(frozen=True)
class Tick:
    """A mark of an axis.

    Attributes:
        at: Its place in per cent, from the left or from the bottom.
        text: Its value.
    """

    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    """One run.

    Attributes:
        left: Its place in per cent.
        bottom: Its place in per cent.
        title: What it shows, for the tooltip.
        run_id: The run that it leads to.
        kind: Number of its shape and colour.
    """

    left: float
    bottom: float
    title: str
    run_id: str
    kind: int = 0


@dataclass(frozen=True)
class Line:
    """A level that lasts.

    Attributes:
        left: Where it begins, in per cent.
        width: How long it is.
        bottom: Its height.
        text: What it says; may be empty.
    """

    left: float
    width: float
    bottom: float
    text: str = ""


@dataclass(frozen=True)
class Plot:
    """A box of dots and lines with two axes.

    Attributes:
        x: Marks of the horizontal axis.
        y: Marks of the vertical axis.
        dots: The runs.
        levels: Lines across a part of the box.
        baseline: A line across the whole box; None without one.
        across: Name of the horizontal axis.
        up: Name of the vertical axis.
    """

    x: Sequence[Tick]
    y: Sequence[Tick]
    dots: Sequence[Dot]
    levels: Sequence[Line] = ()
    baseline: Line | None = None
    across: str = ""
    up: str = ""


@dataclass(frozen=True)
class Scale:
    """Values → places in per cent.

    Attributes:
        low: The value at 0%.
        high: The value at 100%.
        is_log: Whether equal ratios have equal lengths.
    """

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def over(
        cls, values: Sequence[float], *, is_log: bool = False, from_zero: bool = False
    ) -> Scale:
        """Return the scale that shows all values, with a margin.

        Args:
            values: What is shown; at least one.
            is_log: Whether it is logarithmic; only if all values are above 0.
            from_zero: Whether it begins at 0 if the values are near enough to it.
        """
        low, high = min(values), max(values)
        if is_log and low >= _LEAST:
            return cls(low / 1.15, high * 1.15, is_log=True)
        if from_zero and 0 <= low < 0.7 * high:
            return cls(0.0, high * 1.06)
        margin = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - margin if low < 0 else max(0.0, low - margin), high + margin)

    def place(self, value: float) -> float:
        """Return the place of a value, in per cent."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(100.0 * (value - low) / (high - low), 2)

    def mark(self, unit: str = "") -> list[Tick]:
        """Return round marks; `time` is Unix time in seconds."""
        if self.is_log:
            start, end = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            factors = (1, 2, 5) if end - start <= 2 else (1,)
            every = max(1, (end - start) // _TICKS)
            values = [f * 10.0**e for e in range(start, end + 1, every) for f in factors]
            say = _choose_text(unit, 0.0)
            return [Tick(self.place(v), say(v)) for v in values if self.low <= v <= self.high]
        step = _choose_step(self.high - self.low, unit)
        first = math.ceil(self.low / step - 1e-9)
        found = [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        say = _choose_text(unit, step)
        # Marks that are nearer to each other than their texts tell are one mark.
        texts = {say(value): value for value in reversed(found)}
        return [Tick(self.place(value), text) for text, value in reversed(texts.items())]


def _choose_step(length: float, unit: str) -> float:
    """Return the distance of the marks."""
    rough = length / _TICKS
    if unit == "time" or (unit == "s" and rough >= 1):
        return next((float(step) for step in _CLOCK_STEPS if step >= rough), rough)
    base = _MB_PER_GB if unit == "MB" and rough >= _MB_PER_GB / 10 else 1.0
    power: float = 10.0 ** math.floor(math.log10(rough / base))
    return base * next((f * power for f in (1, 2, 5) if f * power >= rough / base), 10 * power)


def _choose_text(unit: str, step: float) -> Callable[[float], str]:
    """Return what turns a value of an axis into its text."""
    if unit != "time":
        return lambda value: quantity(value, unit) if unit else number(value).replace("\u202f", ",")
    # Marks six hours apart may be of two days.
    day = "%Y-%m-%d" if step > 91 * _DAY else "%b %d"
    shape = day if step >= _DAY else "%b %d %H:%M" if step >= 6 * _HOUR else "%H:%M"

    def say(value: float) -> str:
        return datetime.fromtimestamp(value, tz=timezone.utc).strftime(shape)

    return say
