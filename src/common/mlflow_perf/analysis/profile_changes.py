"""Names the functions that account for a change of a run's duration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.callers import describe_place, read_callers
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.exactness import find_share_error, pool_samples
from mlflow_perf.model.profile import list_functions, read_samples

_Key = TypeVar("_Key")

_LEAST_SEC = 0.05
_LEAST_SHARE = 0.1
_MOST_NAMED = 3
_ERROR_WORTH_SAYING = 0.1


Key = tuple[str, str]
"""Name and file of a function."""

Call = tuple[Key, Key]
"""A function, and the one that called it."""


class Seconds(NamedTuple):
    """Seconds in a function, and the half width of their 95% interval.

    Attributes:
        seconds: The seconds.
        error: The half width; 0 where the number of samples is unknown.
    """

    seconds: float
    error: float


@dataclass(frozen=True)
class OwnSeconds:
    """The time that one run spent in the job's own functions.

    Attributes:
        duration_sec: Duration of the run's longest node.
        main: Name and file → wall seconds of the main thread; of several ranks, their mean.
        cpu: The same → CPU seconds of all threads and processes.
        samples: `main` and `cpu` → number of equal samples; empty if unknown.
        main_calls: Function and the one of the job's own that called it → the same as `main`.
        cpu_calls: The same as `cpu`.
        has_callers: Whether the document says which functions called others; older ones do not.
    """

    duration_sec: float
    main: Mapping[Key, float]
    cpu: Mapping[Key, float]
    samples: Mapping[str, float]
    main_calls: Mapping[Call, float] = field(default_factory=dict)
    cpu_calls: Mapping[Call, float] = field(default_factory=dict)
    has_callers: bool = False

    def find(self, function: Key, *, in_main: bool, caller: Key | None = None) -> Seconds:
        """Return the main thread's wall seconds in a function, or the CPU seconds of all.

        Args:
            function: The function.
            in_main: Whether the main thread's time is wanted.
            caller: The function that called it, if only its calls count.
        """
        times = self.main if in_main else self.cpu
        seconds, whole = times.get(function, 0.0), sum(times.values())
        if caller is not None:
            calls = self.main_calls if in_main else self.cpu_calls
            seconds = calls.get((function, caller), 0.0)
        samples = self.samples.get("main" if in_main else "cpu")
        if samples is None or not whole:
            return Seconds(seconds, 0.0)
        return Seconds(seconds, whole * find_share_error(seconds / whole, samples))


@dataclass(frozen=True)
class FunctionChange:
    """The time of one of the job's own functions, with the libraries it called, in two runs.

    Attributes:
        function: Its name.
        file: Its file.
        before_s: Wall seconds of the main thread in the first run; of several ranks, their mean.
        after_s: The same in the last one.
        in_main: False where the main thread had no time in it: the seconds are then CPU time, the
            sum over its threads and processes, and may be more than the run took.
        error_s: Half width of the 95% interval of the change, by the number of samples; 0 where
            that is unknown.
        caller: Which of the job's own functions accounts for the larger part of the change, where
            several call this one.
    """

    function: str
    file: str
    before_s: float
    after_s: float
    in_main: bool = True
    error_s: float = 0.0
    caller: str | None = None

    @property
    def change_s(self) -> float:
        """How many seconds it took more."""
        return self.after_s - self.before_s

    @property
    def text(self) -> str:
        """The change for people: `+38 s`, or `+38 ± 5 s` where the error is worth saying."""
        error = self.error_s if self.error_s > _ERROR_WORTH_SAYING * abs(self.change_s) else 0.0
        return format_seconds(self.change_s, error)

    def as_dict(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {**asdict(self), "change_s": round(self.change_s, 3)}


@dataclass(frozen=True)
class ProfileChange:
    """What changed between two runs of one step.

    Attributes:
        before_s: Duration of the first run: of its longest node.
        after_s: The same of the last one.
        functions: The functions, the largest change first.
    """

    before_s: float
    after_s: float
    functions: tuple[FunctionChange, ...]

    @property
    def change_s(self) -> float:
        """How many seconds the run took more."""
        return self.after_s - self.before_s

    def as_dict(self) -> dict[str, Any]:
        """Return the change as plain data, for JSON."""
        return {
            "before_s": self.before_s,
            "after_s": self.after_s,
            "change_s": round(self.change_s, 3),
            "sentence": self.sentence,
            "functions": [one.as_dict() for one in self.functions],
        }

    @property
    def sentence(self) -> str:
        """Which functions account for the change: "`parse` +38 s of +41 s"; "" if none does.

        A change within its error is no cause. Where the named ones are more than the run's change,
        the function that made up for most of it follows, and last the CPU time of functions that
        only other threads and processes ran.
        """
        least = max(_LEAST_SEC, _LEAST_SHARE * abs(self.change_s))
        sure = [f for f in self.functions if abs(f.change_s) >= max(least, f.error_s)]
        same_way = [f for f in sure if (f.change_s > 0) == (self.change_s > 0)]
        if not same_way or abs(self.change_s) < _LEAST_SEC:
            return ""
        main = [one for one in same_way if one.in_main][:_MOST_NAMED]
        beside = [one for one in same_way if not one.in_main][: _MOST_NAMED - len(main)]
        whole = format_seconds(self.change_s)
        parts = []
        if main:
            parts.append(f"{', '.join(map(_name, main))} of {whole}")
            against = [one for one in sure if one.in_main and one not in same_way]
            if against and abs(sum(f.change_s for f in main)) > abs(self.change_s) + least:
                parts[0] += f", but {_name(against[0])}"
        if beside:
            named = ", ".join(map(_name, beside))
            parts.append(f"{named} of CPU time beside the main thread")
        return "; ".join(parts if main else [*parts, f"the run {whole}"])


def _name(change: FunctionChange) -> str:
    return f"{describe_place(change.function, change.caller, '`')} {change.text}"


def format_seconds(seconds: float, error: float = 0.0) -> str:
    """Return a change of seconds with its sign, and its error if there is one: `+38 ± 5 s`."""
    sign, whole = "−" if seconds < 0 else "+", format_duration(abs(seconds))
    if not error:
        return f"{sign}{whole}"
    short = float(f"{error:.2g}")
    inexact = f"{short:g} s" if short < 1 <= abs(seconds) else format_duration(short)
    number, unit = whole.split(" ", 1)
    return (
        f"{sign}{number} ± {inexact}"
        if inexact.endswith(f" {unit}")
        else f"{sign}{whole} ± {inexact}"
    )


def compare_profiles(
    before: Iterable[NodeDocument], after: Iterable[NodeDocument]
) -> ProfileChange | None:
    """Return what changed from one run of a step to another; None if one has no profile.

    Of several nodes the longest counts, because the run waits for it.
    """
    return compare_repeats([before], [after])


def compare_repeats(
    before: Iterable[Iterable[NodeDocument]], after: Iterable[Iterable[NodeDocument]]
) -> ProfileChange | None:
    """Return what changed from repeats of a step to others: the means of their seconds.

    Args:
        before: The nodes of each of the first runs.
        after: The nodes of each of the last runs.

    Returns:
        The change; None if one of the runs has no profile.
    """
    first, last = _average_repeats(before), _average_repeats(after)
    if first is None or last is None:
        return None
    changes = [
        FunctionChange(
            *key,
            round(a.seconds, 3),
            round(b.seconds, 3),
            in_main,
            round(math.hypot(a.error, b.error), 3),
            _find_changed_caller(key, first, last, in_main=in_main),
        )
        for key, (in_main, (a, b)) in line_up([first, last]).items()
        if a.seconds or b.seconds
    ]
    changes.sort(key=lambda one: -abs(one.change_s))
    return ProfileChange(round(first.duration_sec, 3), round(last.duration_sec, 3), tuple(changes))


def line_up(
    runs: Sequence[OwnSeconds],
) -> dict[Key, tuple[bool, tuple[Seconds, ...]]]:
    """Return name and file of each function → whether it is in a main thread, its seconds by run.

    A function that the main thread of at least one run executed is compared by its time in the main
    thread. Any other function runs beside the main thread and mostly waits, so only its CPU time
    can have slowed the run.
    """
    found = {}
    for key in dict.fromkeys(key for run in runs for key in (*run.main, *run.cpu)):
        in_main = any(run.main.get(key) for run in runs)
        found[key] = in_main, tuple(run.find(key, in_main=in_main) for run in runs)
    return found


def _find_changed_caller(
    function: Key, first: OwnSeconds, last: OwnSeconds, *, in_main: bool
) -> str | None:
    """Return the caller that accounts for the larger part of a function's change.

    None if one function calls it, if none has the larger part by the number of samples, or if a
    document does not have the callers.
    """
    if not (first.has_callers and last.has_callers):
        return None
    calls = [call for run in (first, last) for call in (*run.main_calls, *run.cpu_calls)]
    callers = sorted({caller for called, caller in calls if called == function})

    def find_change(caller: Key | None = None) -> Seconds:
        old, new = (run.find(function, in_main=in_main, caller=caller) for run in (first, last))
        return Seconds(new.seconds - old.seconds, math.hypot(old.error, new.error))

    change_s = find_change().seconds
    for caller in callers if len(callers) > 1 else ():
        seconds, error = find_change(caller)
        if math.copysign(seconds, seconds * change_s) - error > 0.5 * abs(change_s):
            return caller[0]
    return None


def _average_repeats(repeats: Iterable[Iterable[NodeDocument]]) -> OwnSeconds | None:
    """Return the mean of the seconds of repeats; None if one of them has no profile."""
    found = [read_own_seconds(nodes) for nodes in repeats]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    samples = {
        name: pool_samples((sum(getattr(one, name).values()), one.samples[name]) for one in known)
        for name in ("main", "cpu")
        if all(name in one.samples for one in known)
    }
    return OwnSeconds(
        sum(one.duration_sec for one in known) / len(known),
        _average([one.main for one in known]),
        _average([one.cpu for one in known]),
        samples,
        _average([one.main_calls for one in known]),
        _average([one.cpu_calls for one in known]),
        all(one.has_callers for one in known),
    )


def _average(times: Sequence[Mapping[_Key, float]]) -> dict[_Key, float]:
    """Return the mean of the seconds by key; a missing one is 0."""
    keys = dict.fromkeys(key for one in times for key in one)
    return {key: sum(one.get(key, 0.0) for one in times) / len(times) for key in keys}


def read_own_seconds(nodes: Iterable[NodeDocument]) -> OwnSeconds | None:
    """Return the seconds in each own function of the node that took longest; None without any."""
    longest: tuple[float, NodeDocument] | None = None
    for node in nodes:
        profile = node.extra.get("profile")
        if not (isinstance(profile, dict) and "own" in profile) or node.duration_sec is None:
            continue
        if longest is None or node.duration_sec > longest[0]:
            longest = node.duration_sec, node
    if longest is None:
        return None
    duration_sec, node = longest
    rows = list_functions(node, "own")
    main, cpu = _sum_seconds((_read_key(row), row) for row in rows)
    main_calls, cpu_calls = _sum_seconds(
        ((_read_key(row), _read_key(caller)), caller)
        for row in rows
        for caller in read_callers(row) or ()
    )
    # The main thread is in one function at a time. Documents that add up ranks say more.
    excess = max(1.0, sum(main.values()) / duration_sec) if duration_sec > 0 else 1.0
    return OwnSeconds(
        duration_sec,
        {key: seconds / excess for key, seconds in main.items()},
        cpu,
        read_samples(node.extra["profile"]),
        {key: seconds / excess for key, seconds in main_calls.items()},
        cpu_calls,
        all(read_callers(row) is not None for row in rows),
    )


def _read_key(row: Mapping[str, Any]) -> Key:
    return str(row.get("function")), str(row.get("file"))


def _sum_seconds(
    rows: Iterable[tuple[_Key, Mapping[str, Any]]],
) -> tuple[dict[_Key, float], dict[_Key, float]]:
    """Return the main thread's wall seconds and the CPU seconds of rows of a profile, by key."""
    main: dict[_Key, float] = {}
    cpu: dict[_Key, float] = {}
    for key, row in rows:
        for name, had in (("main_s", main), ("cpu_s", cpu)):
            had[key] = had.get(key, 0.0) + (read_number(row.get(name)) or 0.0)
    return main, cpu
