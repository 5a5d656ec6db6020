"""The number of root spans in each state, over time.

A root's state is its latest event: `<span type>/<event>`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlflow_perf.errors import SettingError
from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.event_arrays import DEFAULT_ROOT, Row, read_streams
from mlflow_perf.spans.database.schema import Database

DEFAULT_POINTS = 1000


@dataclass(frozen=True)
class States:
    """How many root spans are in which state.

    Attributes:
        time: Unix microseconds, ascending.
        counts: For each state, in the order in which states are first reached, the number of root
            spans that are in it from each time on.
    """

    time: Ints
    counts: dict[str, Ints]


def states(
    db: Database, root: str = DEFAULT_ROOT, *, points: int | None = DEFAULT_POINTS
) -> list[Row]:
    """Return how many root spans are in which state, over time.

    Args:
        db: The database.
        root: The type of the root spans; their subspans and facets belong to them.
        points: Number of times, evenly spread from the first event to the last; None: every
            change.

    Returns:
        Rows of `time_s` (Unix time) and one column for each state.

    Raises:
        SpansError: There are no spans of type `root`.
        SettingError: There are fewer than two points.
    """
    found = state_counts(db, root, points=points)
    columns = [found.time / 1e6, *found.counts.values()]
    names = ["time_s", *found.counts]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def state_counts(
    db: Database, root: str = DEFAULT_ROOT, *, points: int | None = DEFAULT_POINTS
) -> States:
    """Return the answer of `states` as arrays, for a plot."""
    if points is not None and points < 2:
        raise SettingError(f"points is {points!r}: give 2 or more, or None for every change.")
    streams = read_streams(db, root)
    # The events at which a root enters another state.
    changes = np.diff(streams.kind, prepend=-1) != 0
    changes[streams.starts] = True
    entered = np.flatnonzero(changes)
    if not len(entered):
        return States(np.zeros(0, dtype=np.int64), {})
    kind, time = streams.kind[entered], streams.time[entered]
    if points is None:
        grid = np.unique(time)
    else:
        grid = np.unique(np.linspace(time.min(), time.max(), points).round().astype(np.int64))
    # A change is visible from this point of the grid on.
    point = np.searchsorted(grid, time)
    change = np.zeros((int(kind.max()) + 1, len(grid)), dtype=np.int64)
    np.add.at(change, (kind, point), 1)
    # A root leaves its state when it enters its next one.
    left = np.flatnonzero(np.diff(streams.root[entered]) == 0)
    np.subtract.at(change, (kind[left], point[left + 1]), 1)
    counts = np.cumsum(change, axis=1)
    codes = np.flatnonzero(np.bincount(kind)).tolist()
    codes.sort(key=lambda code: int(time[kind == code].min()))
    return States(grid, {"/".join(streams.kinds[code]): counts[code] for code in codes})
