"""Figures and names as text, for people and for stores."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from functools import lru_cache

from mlflow_perf.errors import SettingError

MISSING = "–"
"""The text for a figure that is missing."""

_NARROW_SPACE = "\u202f"
_KB_PER_MB = 1024.0
_MB_PER_GB = 1024.0
_LONG_SEC = 600.0
_MOST_DIGITS = 15  # a float has no more
_CENTURY_SEC = 100 * 365.25 * 86_400.0


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with at most `digits` significant digits below a thousand."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude >= _MOST_DIGITS:
        return f"{value:.{digits}g}"
    decimals = max(0, min(digits - 1 - magnitude, 6))
    text = f"{value:,.{decimals}f}".replace(",", _NARROW_SPACE)
    return text.rstrip("0").rstrip(".") if "." in text else text


def one_decimal(value: float | None) -> str:
    """Return a number with at most one decimal, its thousands apart: `2`, `1.5`, `1,537`."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.1f}".removesuffix(".0")


def duration(seconds: float | None) -> str:
    """Return a length of time: `186 ns`, `340 ms`, `12.3 s`, `4 min 05 s`, `3 d 04 h`."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 1e-3:
        is_short = abs(seconds) < 1e-6
        return f"{number(seconds * 1e9)} ns" if is_short else f"{number(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{number(seconds * 1000)} ms"
    if seconds < 59.95 or seconds >= 10.0**_MOST_DIGITS:
        return f"{number(seconds)} s"
    whole, minutes, hours = round(seconds), round(seconds / 60), round(seconds / 3600)
    if whole < 3600:
        big, unit, small, small_unit = whole // 60, "min", whole % 60, "s"
    elif minutes < 48 * 60:
        big, unit, small, small_unit = minutes // 60, "h", minutes % 60, "min"
    else:
        big, unit, small, small_unit = hours // 24, "d", hours % 24, "h"
    return f"{big} {unit} {small:02d} {small_unit}" if small else f"{big} {unit}"


def cpu_time(cpu_hours: float, whole: float | None = None) -> str:
    """Return CPU-hours in a unit that suits their size: those of a short job are CPU-seconds.

    Args:
        cpu_hours: The figure.
        whole: The total that the figure is a part of, if the unit should suit the total.
    """
    if abs(cpu_hours if whole is None else whole) < 0.1:
        # The kernel counts CPU time in hundredths of a second.
        return f"{number(round(cpu_hours * 3600.0, 2))} CPU s"
    return f"{number(cpu_hours)} CPU h"


def _size(megabytes: float, whole: float | None = None) -> str:
    """Return a size in the unit that suits it, or suits `whole`."""
    size = abs(megabytes if whole is None else whole)
    if 0 < size < 1:
        return f"{number(megabytes * _KB_PER_MB)} kB"
    if size < _MB_PER_GB:
        return f"{number(megabytes)} MB"
    gigabytes = megabytes / _MB_PER_GB
    if size < _MB_PER_GB**2:
        return f"{number(gigabytes)} GB"
    return f"{number(gigabytes / _MB_PER_GB)} TB"


_SCALED: dict[str, Callable[[float], str]] = {
    "s": duration,
    "ms": lambda milliseconds: duration(milliseconds / 1000.0),
    "MB": _size,
    "%": lambda percent: f"{number(percent)}%",
    "CPU h": cpu_time,
}


def quantity(value: float | None, unit: str) -> str:
    """Return a figure with its unit; times and sizes get a unit that suits their size."""
    if value is None or not math.isfinite(value):
        return MISSING
    scaled = _SCALED.get(unit)
    return f"{number(value)} {unit}".rstrip() if scaled is None else scaled(value)


def format_for_people(
    values: Sequence[float | None], unit: str, *, cpu_hours: Sequence[float] = ()
) -> list[str]:
    """Return the values of one row with units that suit them, and commas between thousands.

    Args:
        values: The values.
        unit: Their unit.
        cpu_hours: All CPU times of the table, which share the unit of the largest one.
    """
    known = [abs(v) for v in (*values, *cpu_hours) if v is not None and math.isfinite(v)]
    texts = []
    for value in values:
        if value is not None and unit == "CPU h" and math.isfinite(value):
            text = cpu_time(value, max(known))
        elif value and unit and 0 < abs(value) < 0.001 and unit not in _SCALED:
            text = f"<0.001 {unit}"
        else:
            text = quantity(value, unit)
        texts.append(text.replace(_NARROW_SPACE, ","))
    return texts


def format_pair(before: float, after: float, unit: str) -> str:
    """Return two values in the unit that suits the larger one: `22 → 396 s`, `0.5 → 1.2 GB`.

    Long times keep units of their own: `50 s → 1 h 03 min`.
    """
    whole = max(abs(before), abs(after))
    if unit == "s" and 1 <= whole < _LONG_SEC:
        first, last = number(before), f"{number(after)} s"
    elif unit == "%":
        first, last = f"{before:.0f}", f"{after:.0f}%"
    elif unit == "MB":
        first, last = _size(before, whole), _size(after, whole)
    else:
        first, last = format_for_people((before, after), unit)
    value, _, own_unit = first.partition(" ")
    is_one_unit = last.partition(" ")[2] == own_unit and not any(map(str.isdigit, own_unit))
    text = f"{value if is_one_unit else first} → {last}"
    return text.replace(_NARROW_SPACE, ",")


def clock_time(seconds: float | None, *, missing: str = MISSING) -> str:
    """Return a Unix time as `2026-11-20 17:05:09 UTC`; `missing` where there is none."""
    if seconds is None or not math.isfinite(seconds):
        return missing
    try:
        moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return MISSING
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def parse_age(text: str) -> float:
    """Return an age such as `90min`, `24h`, `30d` or `4w` in seconds; at most a century.

    Raises:
        SettingError: When the text is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(min|h|d|w)", text.strip())
    if match is None:
        raise SettingError(f"{text[:40]!r} is no age: write 90min, 24h, 30d or 4w.")
    age_sec = float(match[1]) * {"min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}[match[2]]
    return min(age_sec, _CENTURY_SEC)  # no run is older, and a database takes no time so long ago


def format_change(change_pct: float | None) -> str:
    """Return a relative change with its sign: `+12.3%`, `-150%`, `×44` from 1,000% upwards."""
    if change_pct is None:
        return MISSING
    if change_pct >= 1000:
        return f"×{1 + change_pct / 100:,.0f}"
    if abs(change_pct) >= 100:
        return f"{change_pct:+.0f}%"
    return f"{round(change_pct, 1) + 0.0:+.1f}%"  # + 0.0 turns -0.0 into 0.0


def format_chance(chance: float) -> str:
    """Return a chance that is estimated, and so never certain: `85%`, `over 99%`."""
    return "over 99%" if chance > 0.99 else f"{math.floor(100 * chance)}%"


def format_count(count: float, noun: str) -> str:
    """Return a number with its noun: `1 run`, `1,200 runs`, `1.5 CPUs`, `2 processes`."""
    shown = one_decimal(count)
    if shown == "1":
        return f"1 {noun}"
    return f"{shown} {noun}{'es' if noun.endswith('s') else 's'}"


def join_some(names: Iterable[object], most: int = 5, *, separator: str = ", ") -> str:
    """Return the first names of a list as text, and how many more there are."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return separator.join(listed[:most]) + more


def cut_text(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a shortened text ends in `…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def show_spaces(name: str) -> str:
    """Return a name with a sign for the spaces that nobody sees: at its ends, and repeated ones."""
    return re.sub(r"^ +| +$|(?<= ) +", lambda spaces: "␣" * len(spaces[0]), name)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: `: did you mean 'x'?`, else a stop."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f": did you mean {near[0]!r}?" if near else "."


def clean_name(text: str, *, keep: str = "") -> str:
    """Return a text with `_` in place of all but ASCII letters, digits and `keep`."""
    return re.sub(rf"[^\w{re.escape(keep)}]", "_", text, flags=re.ASCII)


def clean_folder_name(text: str) -> str:
    """Return a text as the name of one folder; different texts have different names."""
    name = clean_name(text, keep="-. ").strip(". ")[:_MAX_FOLDER]
    if name == text:
        return name
    return f"{name}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


_MAX_METRIC_KEY = 250
_MAX_FOLDER = 100


@lru_cache(maxsize=4096)  # the same hundred keys, for each of a thousand runs
def clean_metric_key(key: str) -> str:
    """Return a metric key that every MLflow store accepts; one bad key spoils a whole batch."""
    parts = clean_name(key, keep="-. :/").split("/")
    key = "/".join(part for part in parts if part.strip("."))
    return re.sub(r"^\.\.+", "", key)[:_MAX_METRIC_KEY].rstrip("/. ") or "_"
