"""Names the functions that account for a change of a run's duration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.document import NodeDocument

_LEAST_SEC = 0.05
_LEAST_SHARE = 0.1
_MOST_NAMED = 3

OwnSeconds = Mapping[tuple[str, str], tuple[float, float]]
"""Name and file of a function → wall seconds of the main thread, CPU seconds of all threads."""


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
    """

    function: str
    file: str
    before_s: float
    after_s: float
    in_main: bool = True

    @property
    def change_s(self) -> float:
        """How many seconds it took more."""
        return self.after_s - self.before_s

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

        The CPU time of functions that only other threads and processes ran follows.
        """
        least = max(_LEAST_SEC, _LEAST_SHARE * abs(self.change_s))
        same_way = [
            one
            for one in self.functions
            if abs(one.change_s) >= least and (one.change_s > 0) == (self.change_s > 0)
        ]
        if not same_way or abs(self.change_s) < _LEAST_SEC:
            return ""
        named = [
            f"`{one.function}` {format_seconds(one.change_s)}"
            for one in sorted(same_way, key=lambda one: not one.in_main)
        ][:_MOST_NAMED]
        count = min(sum(one.in_main for one in same_way), _MOST_NAMED)
        whole, beside = format_seconds(self.change_s), ", ".join(named[count:])
        beside += " of CPU time beside the main thread" if beside else ""
        if not count:
            return f"{beside}; the run {whole}"
        return "; ".join(filter(None, (f"{', '.join(named[:count])} of {whole}", beside)))


def format_seconds(seconds: float) -> str:
    """Return a change of seconds with its sign: `+38 s`."""
    return f"{'−' if seconds < 0 else '+'}{format_duration(abs(seconds))}"


def compare_profiles(
    before: Iterable[NodeDocument], after: Iterable[NodeDocument]
) -> ProfileChange | None:
    """Return what changed from one run of a step to another; None if one has no profile.

    Of several nodes the longest counts, because the run waits for it.
    """
    sides = [read_own_seconds(before), read_own_seconds(after)]
    known = [side for side in sides if side is not None]
    if len(known) < len(sides):
        return None
    lined_up = line_up([functions for _, functions in known])
    changes = [
        FunctionChange(*key, round(first, 3), round(last, 3), in_main)
        for key, (in_main, (first, last)) in lined_up.items()
    ]
    changes.sort(key=lambda one: -abs(one.change_s))
    return ProfileChange(round(known[0][0], 3), round(known[1][0], 3), tuple(changes))


def line_up(
    runs: Sequence[OwnSeconds],
) -> dict[tuple[str, str], tuple[bool, tuple[float, ...]]]:
    """Return name and file of each function → whether it is in a main thread, its seconds by run.

    What the main thread does in one run at least is compared by the main thread's time in all. The
    rest runs beside it: only what it computes can have held the run up, as it waits all the time.
    """
    keys = dict.fromkeys(key for run in runs for key in run)
    found = {key: [run.get(key, (0.0, 0.0)) for run in runs] for key in keys}
    in_main = {key: any(main for main, _ in found[key]) for key in keys}
    return {
        key: (in_main[key], tuple(main if in_main[key] else cpu for main, cpu in found[key]))
        for key in keys
    }


def read_own_seconds(nodes: Iterable[NodeDocument]) -> tuple[float, OwnSeconds] | None:
    """Return the duration of the node that took longest, and the seconds in each own function.

    None without a profile.
    """
    found = None
    for node in nodes:
        rows = (node.extra.get("profile") or {}).get("own")
        if not isinstance(rows, list) or node.duration_sec is None:
            continue
        if found is None or node.duration_sec > found[0]:
            seconds: dict[tuple[str, str], tuple[float, float]] = {}
            for row in rows:
                key = str(row.get("function")), str(row.get("file"))
                main, cpu = (read_number(row.get(name)) or 0.0 for name in ("main_s", "cpu_s"))
                had = seconds.get(key, (0.0, 0.0))
                seconds[key] = had[0] + main, had[1] + cpu
            found = node.duration_sec, seconds
    return found
