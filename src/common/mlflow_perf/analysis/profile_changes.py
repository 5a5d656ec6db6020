"""Names the functions that account for a change of a run's duration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.document import NodeDocument

_LEAST_SEC = 0.05
_LEAST_SHARE = 0.1
_MOST_NAMED = 3


@dataclass(frozen=True)
class FunctionChange:
    """The time of one of the job's own functions, with the libraries it called, in two runs.

    Attributes:
        function: Its name.
        file: Its file.
        before_s: Wall seconds of the main thread in the first run; of all threads where the main
            thread had no time in it.
        after_s: The same in the last one.
    """

    function: str
    file: str
    before_s: float
    after_s: float

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

    @property
    def sentence(self) -> str:
        """Which functions account for the change: "`parse` +38 s of +41 s"; "" if none does."""
        least = max(_LEAST_SEC, _LEAST_SHARE * abs(self.change_s))
        same_way = [
            one
            for one in self.functions
            if abs(one.change_s) >= least and (one.change_s > 0) == (self.change_s > 0)
        ]
        if not same_way or abs(self.change_s) < _LEAST_SEC:
            return ""
        named = ", ".join(
            f"`{one.function}` {format_seconds(one.change_s)}" for one in same_way[:_MOST_NAMED]
        )
        return f"{named} of {format_seconds(self.change_s)}"


def format_seconds(seconds: float) -> str:
    """Return a change of seconds with its sign: `+38 s`."""
    return f"{'−' if seconds < 0 else '+'}{format_duration(abs(seconds))}"


def compare_profiles(
    before: Iterable[NodeDocument], after: Iterable[NodeDocument]
) -> ProfileChange | None:
    """Return what changed from one run of a step to another; None if one has no profile.

    Of several nodes the one that took longest counts: the run waits for it.
    """
    sides = [read_own_seconds(before), read_own_seconds(after)]
    if any(side is None for side in sides):
        return None
    (first_s, first), (last_s, last) = (side for side in sides if side is not None)
    changes = [
        FunctionChange(name, file, round(first.get((name, file), 0.0), 3), round(seconds, 3))
        for (name, file), seconds in {**dict.fromkeys(first, 0.0), **last}.items()
    ]
    changes.sort(key=lambda one: -abs(one.change_s))
    return ProfileChange(round(first_s, 3), round(last_s, 3), tuple(changes))


def read_own_seconds(
    nodes: Iterable[NodeDocument],
) -> tuple[float, Mapping[tuple[str, str], float]] | None:
    """Return the duration of the node that took longest, and the seconds in each own function.

    The functions are named by name and file; None without a profile.
    """
    found = None
    for node in nodes:
        rows = (node.extra.get("profile") or {}).get("own")
        if not isinstance(rows, list) or node.duration_sec is None:
            continue
        if found is None or node.duration_sec > found[0]:
            seconds: dict[tuple[str, str], float] = {}
            for row in rows:
                key = str(row.get("function")), str(row.get("file"))
                main, wall = (read_number(row.get(name)) or 0.0 for name in ("main_s", "wall_s"))
                seconds[key] = seconds.get(key, 0.0) + (main or wall)
            found = node.duration_sec, seconds
    return found
