"""Pictures of the analyses' answers, drawn with matplotlib.

matplotlib is loaded when something is drawn. Figures are made without pyplot, so that those of the
user's own program stay untouched.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlflow_perf.core.extras import needing
from mlflow_perf.core.format import format_count
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.analyses.state_curves import States
from mlflow_perf.spans.database.event_arrays import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE = "#2166ac"
# With a contrast between neighbours; with more states they repeat. Red is left to failures, and
# green to what is done.
_COLOUR_MAPS = ("tab20", "tab20b")
_RED, _GREEN = "#d62728", "#2ca02c"
_MEANING = (4, 5, 6, 7)  # the greens and reds of the maps
_FAILED, _DONE = ("fail", "error", "lost", "kill"), ("done", "returned")
_GRID = (80, 40)
_DPI = 120
# Fixed: computing the margins would draw everything twice.
_MARGINS = {"left": 0.07, "right": 0.98, "top": 0.93, "bottom": 0.07, "hspace": 0.3, "wspace": 0.18}


def plot_times(rows: Sequence[Row], title: str) -> Figure:
    """Draw the rows of `between`: over time, as a histogram, and as a density.

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
    start -= start.min()
    took = np.array([row["duration_s"] for row in rows])
    figure = _new_figure(12, 7.5)
    figure.set_layout_engine("none")
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2), **_MARGINS)

    scatter = figure.add_subplot(grid[0, :])
    # One pixel each: larger markers would draw a path for each of a hundred thousand points.
    scatter.plot(start, took, ",", color=_BLUE, rasterized=True)
    if len(start) < 5000:
        scatter.plot(start, took, ".", color=_BLUE, markersize=3, rasterized=True)
    scatter.set(xlabel="start, seconds since the first", ylabel="seconds taken")

    histogram = figure.add_subplot(grid[1, 0])
    counts, edges = np.histogram(took, bins=100)
    histogram.stairs(counts, edges, fill=True, color=_BLUE, alpha=0.7)
    p50, p95 = np.percentile(took, (50, 95))
    for name, value, colour in (
        ("mean", took.mean(), "#1b7837"),
        ("median", p50, "#762a83"),
        ("95%", p95, "#b35806"),
        ("max", took.max(), "#b2182b"),
    ):
        label = f"{name} {value:.3g} s"
        histogram.axvline(value, color=colour, linestyle="--", linewidth=1.2, label=label)
    histogram.legend(fontsize=8)
    histogram.set(xlabel="seconds taken", ylabel="spans")

    density = figure.add_subplot(grid[1, 1])
    table, x, y = np.histogram2d(start, took, bins=_GRID)
    extent = (x[0], x[-1], y[0], y[-1])
    density.imshow(table.T, cmap="viridis", origin="lower", aspect="auto", extent=extent)
    density.set(xlabel="start, seconds since the first", ylabel="seconds taken", title="density")

    figure.suptitle(f"{title} ({format_count(len(rows), 'span')})")
    return figure


def plot_states(states: States, title: str) -> Figure:
    """Draw how many spans are in which state over time, stacked.

    Raises:
        SpansError: There are no states.
        MissingDependencyError: matplotlib is not installed.
    """
    if not states.counts:
        raise SpansError(f"There is nothing to draw: no states of {title}.")
    figure = _new_figure(13, 6.5)
    from matplotlib import colormaps

    others = [colormaps[name](i) for name in _COLOUR_MAPS for i in range(20) if i not in _MEANING]
    colours = []  # red for failures, green for what is done
    for i, name in enumerate(states.counts):
        event = name.rpartition("/")[2].lower()
        done = _GREEN if event.endswith(_DONE) else others[i % len(others)]
        colours.append(_RED if any(word in event for word in _FAILED) else done)
    axes = figure.add_subplot()
    axes.stackplot(
        (states.time - states.time[0]) / 1e6,
        *states.counts.values(),
        labels=list(states.counts),
        colors=colours,
        step="post",
        rasterized=True,
    )
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
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
    figure = _new_figure(11, 4.5)
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
    """Write a figure to a file in the format of its ending (png, svg, pdf).

    Raises:
        SpansError: matplotlib cannot write the format, or the file cannot be written.
    """
    try:
        figure.savefig(path, dpi=_DPI)
    except (ValueError, OSError) as error:
        raise SpansError(f"The picture {path} cannot be written: {error}.") from error
    return Path(path)


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG element for a web page; its words stay text."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg")
    document = text.getvalue()
    return document[document.index("<svg") :]


def _new_figure(width: float, height: float) -> Figure:
    with needing("matplotlib", "spans"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")
