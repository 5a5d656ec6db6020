"""Names the functions that account for a change of a run's duration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.exactness import find_share_error, pool_samples
from mlflow_perf.model.profile import list_functions, read_samples

_LEAST_SEC = 0.05
_LEAST_SHARE = 0.1
_MOST_NAMED = 3
_ERROR_WORTH_SAYING = 0.1


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
    """

    duration_sec: float
    main: Mapping[tuple[str, str], float]
    cpu: Mapping[tuple[str, str], float]
    samples: Mapping[str, float]

    def find(self, function: tuple[str, str], *, in_main: bool) -> Seconds:
        """Return the main thread's wall seconds in a function, or the CPU seconds of all."""
        times = self.main if in_main else self.cpu
        seconds, whole = times.get(function, 0.0), sum(times.values())
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
    """

    function: str
    file: str
    before_s: float
    after_s: float
    in_main: bool = True
    error_s: float = 0.0

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
    return f"`{change.function}` {change.text}"


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
        )
        for key, (in_main, (a, b)) in line_up([first, last]).items()
        if a.seconds or b.seconds
    ]
    changes.sort(key=lambda one: -abs(one.change_s))
    return ProfileChange(round(first.duration_sec, 3), round(last.duration_sec, 3), tuple(changes))


def line_up(
    runs: Sequence[OwnSeconds],
) -> dict[tuple[str, str], tuple[bool, tuple[Seconds, ...]]]:
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


def _average_repeats(repeats: Iterable[Iterable[NodeDocument]]) -> OwnSeconds | None:
    """Return the mean of the seconds of repeats; None if one of them has no profile."""
    found = [read_own_seconds(nodes) for nodes in repeats]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None

    def average(name: str) -> dict[tuple[str, str], float]:
        times: list[Mapping[tuple[str, str], float]] = [getattr(one, name) for one in known]
        keys = dict.fromkeys(key for one in times for key in one)
        return {key: sum(one.get(key, 0.0) for one in times) / len(times) for key in keys}

    samples = {
        name: pool_samples((sum(getattr(one, name).values()), one.samples[name]) for one in known)
        for name in ("main", "cpu")
        if all(name in one.samples for one in known)
    }
    duration_sec = sum(one.duration_sec for one in known) / len(known)
    return OwnSeconds(duration_sec, average("main"), average("cpu"), samples)


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
    times: dict[str, dict[tuple[str, str], float]] = {"main": {}, "cpu": {}}
    for row in list_functions(node, "own"):
        key = str(row.get("function")), str(row.get("file"))
        for name, had in times.items():
            had[key] = had.get(key, 0.0) + (read_number(row.get(f"{name}_s")) or 0.0)
    # The main thread is in one function at a time. Documents that add up ranks say more.
    excess = max(1.0, sum(times["main"].values()) / duration_sec) if duration_sec > 0 else 1.0
    main = {key: seconds / excess for key, seconds in times["main"].items()}
    return OwnSeconds(duration_sec, main, times["cpu"], read_samples(node.extra["profile"]))
