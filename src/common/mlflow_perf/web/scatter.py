"""One field of the runs against another, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_perf.core.format import format_count, quantity
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.fields import Field, read_number
from mlflow_perf.web.plots import Dot, Plot, Scale, Tick

_MOST_KINDS = 6
_MOST_WORDS = 30
_TITLE = 80
_ORDERED = 0.3
_FEW = 5


@dataclass(frozen=True)
class Scatter:
    """Two fields of runs.

    Attributes:
        plot: One dot for each run that has both.
        kinds: Names of the kinds of dots, in the order of their numbers; empty without kinds.
        summary: How many runs are shown, and whether one field rises with the other.
    """

    plot: Plot | None
    kinds: Sequence[str]
    summary: str


def build_scatter(
    runs: Sequence[PerfRun],
    across: Field,
    up: Field,
    by: Field | None = None,
    *,
    logs: tuple[bool, bool] = (False, False),
) -> Scatter:
    """Return the dots of the runs that have both fields.

    Args:
        runs: The runs.
        across: The horizontal axis; texts get equal distances.
        up: The vertical axis; numbers only.
        by: The field that gives the dots their shapes and colours.
        logs: Whether the axes are logarithmic.
    """
    heights = {run.run_id: read_number(up.read(run)) for run in runs}
    shown = [r for r in runs if across.read(r) is not None and heights[r.run_id] is not None]
    if not shown:
        return Scatter(None, [], f"No run has both {across.label} and {up.label}.")
    values = [heights[run.run_id] or 0.0 for run in shown]
    places, ticks = _place_across(shown, across, is_log=logs[0])
    scale = Scale.over(values, is_log=logs[1], from_zero=True)
    words = [str(by.read(run) or "(none)") if by is not None else "" for run in shown]
    names = sorted(set(words), key=lambda word: (-words.count(word), word))
    kinds = names[:_MOST_KINDS] if len(names) <= _MOST_KINDS else [*names[: _MOST_KINDS - 1], "…"]
    dots = []
    for run, left, value, word in zip(shown, places, values, words, strict=True):
        kind = kinds.index(word) if word in kinds else len(kinds) - 1
        text = str(across.read(run))
        if (figure := read_number(across.read(run))) is not None and across.unit:
            text = quantity(figure, across.unit)
        title = f"{run.name}: {across.label} {text[:_TITLE]}, {up.label} {quantity(value, up.unit)}"
        dots.append(Dot(left, scale.place(value), title, str(run.run_id), kind))
    known = f"{len(shown)} of {format_count(len(runs), 'run')}"
    summary = f"Both are known of {known}. {_relate(shown, across, up, values)}"
    plot = Plot(ticks, scale.mark(up.unit), dots, across=across.label, up=up.label)
    return Scatter(plot, kinds if by is not None else [], summary.strip())


def _place_across(
    runs: Sequence[PerfRun], field: Field, *, is_log: bool
) -> tuple[list[float], list[Tick]]:
    """Return the place of each run on the horizontal axis, and the axis's marks."""
    read = [field.read(run) for run in runs]
    numbers = [n for n in map(read_number, read) if n is not None]
    if len(numbers) == len(read):
        scale = Scale.over(numbers, is_log=is_log)
        unit = "time" if field.name == "started" else field.unit
        return [scale.place(value) for value in numbers], scale.mark(unit)
    words = sorted({str(value) for value in read})
    width = 100.0 / min(len(words), _MOST_WORDS)
    at = {word: min(i, _MOST_WORDS - 1) * width + width / 2 for i, word in enumerate(words)}
    ticks = [Tick(at[word], word[:20]) for word in words[:_MOST_WORDS]]
    return [at[str(value)] for value in read], ticks


def _relate(runs: Sequence[PerfRun], across: Field, up: Field, values: Sequence[float]) -> str:
    """Return whether one field rises with the other, by the ranks of their values."""
    import numpy as np

    from mlflow_perf.analysis.history import rank_values

    numbers = [read_number(across.read(run)) for run in runs]
    known = [n for n in numbers if n is not None]
    if len(known) != len(runs) or len(runs) < _FEW or len(set(known)) < 2 or len(set(values)) < 2:
        return ""
    ranks = [rank_values(np.asarray(series, np.float64)) for series in (known, values)]
    order = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    if abs(order) < _ORDERED:
        return f"{up.label} does not follow {across.label} (rank correlation {order:+.2f})."
    way = "rises" if order > 0 else "falls"
    return f"{up.label} {way} as {across.label} rises (rank correlation {order:+.2f})."
