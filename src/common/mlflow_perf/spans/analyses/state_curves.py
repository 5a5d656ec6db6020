"""How many root spans are in which state, over time.

May import errors, spans.analyses, spans.columns. A root's state is its latest event:
`<span type>/<event>`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlflow_perf.errors import SettingError
from mlflow_perf.spans.analyses.timings import DEFAULT_ROOT, Database, Row, load_streams
from mlflow_perf.spans.database.event_arrays import Ints, Streams

__all__ = ["States", "state_counts", "states"]

DEFAULT_POINTS = 1000


@dataclass(frozen=True)
class States:
    """How many root spans are in which state.

    Attributes:
        time: Unix microseconds, ascending.
        counts: For each state, in the order in which states are first reached, how many root spans
            are in it from each time on.
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
        points: At how many times, evenly spread from the first event to the last; None: at every
            change.

    Returns:
        Rows of `time_s` (Unix time) and one column for each state.

    Raises:
        SpansError: There are no spans of type `root`.
        SettingError: There are fewer than two points.
    """
    found = state_counts(db, root, points=points)
    names = list(found.counts)
    table = np.stack([found.counts[n] for n in names]).T.tolist() if names else []
    return [
        {"time_s": time / 1e6, **dict(zip(names, row, strict=True))}
        for time, row in zip(found.time.tolist(), table, strict=True)
    ]


def state_counts(
    db: Database, root: str = DEFAULT_ROOT, *, points: int | None = DEFAULT_POINTS
) -> States:
    """Return what `states` does, as arrays for a plot."""
    if points is not None and points < 2:
        raise SettingError(f"points is {points!r}: give 2 or more, or None for every change.")
    streams = load_streams(db, root)
    entered = _changes(streams)
    if not len(entered):
        return States(np.zeros(0, dtype=np.int64), {})
    kind, time = streams.kind[entered], streams.time[entered]
    left = np.flatnonzero(np.diff(streams.root[entered]) == 0)
    grid = np.unique(time) if points is None else _grid(time, points)
    # The first point at which each change shows.
    point = np.searchsorted(grid, time)
    codes = _by_first_time(kind, time)
    into = _counted(kind, point, shape=(max(codes) + 1, len(grid)))
    into -= _counted(kind[left], point[left + 1], shape=into.shape)
    inside = np.cumsum(into, axis=1)
    return States(grid, {"/".join(streams.columns.kinds[code]): inside[code] for code in codes})


def _changes(streams: Streams) -> Ints:
    """Return where a root enters a state that it was not in."""
    other = np.diff(streams.kind, prepend=-1) != 0
    other[streams.starts] = True
    return np.flatnonzero(other)


def _grid(time: Ints, points: int) -> Ints:
    return np.unique(np.linspace(time.min(), time.max(), points).round().astype(np.int64))


def _by_first_time(kind: Ints, time: Ints) -> list[int]:
    codes = np.flatnonzero(np.bincount(kind)).tolist()
    return sorted(codes, key=lambda code: int(time[kind == code].min()))


def _counted(row: Ints, column: Ints, *, shape: tuple[int, int]) -> Ints:
    """Return a table of how often each place in it was named."""
    flat = np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1])
    return flat.reshape(shape)
