"""Pictures of what the analyses return: the only importer of matplotlib among the spans.

May import errors, spans.analyses, spans.state_curves. matplotlib is loaded when something is drawn;
figures are made without pyplot, so that a program's own are left alone.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlflow_perf.errors import MissingDependencyError, SpansError
from mlflow_perf.spans.analyses.state_curves import States
from mlflow_perf.spans.analyses.timings import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_concurrency", "plot_states", "plot_times", "save", "to_svg"]

_BLUE, _GREEN, _ORANGE, _RED = "#2166ac", "#1b7837", "#b35806", "#b2182b"
# Forty colours of which neighbours differ; with more states they repeat.
_COLOUR_MAPS = ("tab20", "tab20b")
_GRID = 160
_SMOOTHING = 2.0
_DPI = 120
# Fixed where nothing stands outside the axes: finding them out draws everything twice.
_MARGINS = {"left": 0.07, "right": 0.98, "top": 0.93, "bottom": 0.07, "hspace": 0.3, "wspace": 0.18}

_Floats = npt.NDArray[np.float64]


def plot_times(rows: Sequence[Row], title: str) -> Figure:
    """Draw what `between` returned: over time, as a histogram, and as a density.

    Args:
        rows: Rows of `start_s` and `duration_s`.
        title: What was measured.

    Raises:
        SpansError: There are no rows.
        MissingDependencyError: matplotlib is not installed.
    """
    if not rows:
        raise SpansError(f"There is nothing to draw: no times of {title}.")
    start = np.array([row["start_s"] for row in rows])
    took = np.array([row["duration_s"] for row in rows])
    figure = _figure(12, 7.5)
    figure.set_layout_engine("none")
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2), **_MARGINS)
    _scatter(figure.add_subplot(grid[0, :]), start - start.min(), took)
    _histogram(figure.add_subplot(grid[1, 0]), took)
    _density(figure.add_subplot(grid[1, 1]), start - start.min(), took)
    figure.suptitle(f"{title} ({len(rows):,} spans)")
    return figure


def plot_states(states: States, title: str) -> Figure:
    """Draw how many spans are in which state over time, stacked.

    Raises:
        SpansError: There are no states.
        MissingDependencyError: matplotlib is not installed.
    """
    if not states.counts:
        raise SpansError(f"There is nothing to draw: no states of {title}.")
    figure = _figure(13, 6.5)
    axes = figure.add_subplot()
    time = (states.time - states.time[0]) / 1e6
    colours = _colours(len(states.counts))
    axes.stackplot(
        time,
        *states.counts.values(),
        labels=list(states.counts),
        colors=colours,
        step="post",
        rasterized=True,
    )
    axes.set(xlabel="seconds since the first event", ylabel="spans", title=title)
    axes.margins(x=0)
    # The legend in the order of the stack, the last state on top.
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8)
    return figure


def plot_concurrency(rows: Sequence[Row], title: str) -> Figure:
    """Draw how many spans were under way at once.

    Raises:
        SpansError: There are no rows.
        MissingDependencyError: matplotlib is not installed.
    """
    if not rows:
        raise SpansError(f"There is nothing to draw: no spans of {title}.")
    figure = _figure(11, 4.5)
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    time = np.array([row["time_s"] for row in rows])
    axes.fill_between(
        time - time[0], [row["spans"] for row in rows], step="post", color=_BLUE, linewidth=0
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="seconds since the first", ylabel="under way at once", title=title)
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure to a file of the kind that its ending says (png, svg, pdf).

    Raises:
        SpansError: matplotlib cannot write such a file, or not there.
    """
    try:
        figure.savefig(path, dpi=_DPI)
    except (ValueError, OSError) as error:
        raise SpansError(f"The picture {path} cannot be written: {error}.") from error
    return Path(path)


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG element, to stand in a page, its words as text."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg")
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("matplotlib", "spans") from error
    return Figure(figsize=(width, height), layout="constrained")


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    colours = [colormaps[name](i) for name in _COLOUR_MAPS for i in range(20)]
    return [colours[i % len(colours)] for i in range(count)]


def _scatter(axes: Axes, start: _Floats, took: _Floats) -> None:
    # A pixel for each: markers of a size take a hundred thousand paths.
    axes.plot(start, took, ",", color=_BLUE, rasterized=True)
    if len(start) < 5000:
        axes.plot(start, took, ".", color=_BLUE, markersize=3, rasterized=True)
    axes.set(xlabel="start, seconds since the first", ylabel="seconds taken")


def _histogram(axes: Axes, took: _Floats) -> None:
    counts, edges = np.histogram(took, bins=100)
    axes.stairs(counts, edges, fill=True, color=_BLUE, alpha=0.7)
    p50, p95 = np.percentile(took, (50, 95))
    marks = (
        ("mean", took.mean(), _GREEN),
        ("median", p50, "#762a83"),
        ("95%", p95, _ORANGE),
        ("max", took.max(), _RED),
    )
    for name, value, colour in marks:
        axes.axvline(
            value, color=colour, linestyle="--", linewidth=1.2, label=f"{name} {value:.3g} s"
        )
    axes.legend(fontsize=8)
    axes.set(xlabel="seconds taken", ylabel="spans")


def _density(axes: Axes, start: _Floats, took: _Floats) -> None:
    counts, x, y = np.histogram2d(start, took, bins=_GRID, range=(_wider(start), _wider(took)))
    axes.imshow(
        _smoothed(counts).T,
        cmap="viridis",
        origin="lower",
        aspect="auto",
        extent=(x[0], x[-1], y[0], y[-1]),
    )
    axes.set(xlabel="start, seconds since the first", ylabel="seconds taken", title="density")


def _wider(values: _Floats) -> tuple[float, float]:
    """Return the range of some values with room for what blurring spreads beyond it."""
    low, high = float(values.min()), float(values.max())
    room = 0.06 * (high - low) or 0.5
    return low - room, high + room


def _smoothed(counts: _Floats) -> _Floats:
    """Return a table of counts blurred by a Gaussian, along each axis."""
    reach = np.arange(-3 * _SMOOTHING, 3 * _SMOOTHING + 1)
    kernel = np.exp(-0.5 * (reach / _SMOOTHING) ** 2)
    kernel /= kernel.sum()
    blurred: Any = counts
    for axis in (0, 1):
        blurred = np.apply_along_axis(np.convolve, axis, blurred, kernel, "same")
    table: _Floats = blurred
    return table
