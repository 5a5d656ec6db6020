"""The page of a recommendation: each component's past peaks as a picture, and the sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlflow_perf.analysis.rightsize import RightSize
from mlflow_perf.core.format import quantity
from mlflow_perf.reports.html import load_templates

_WIDTH, _HEIGHT = 640.0, 200.0
_MOST_POINTS = 1000


@dataclass(frozen=True)
class Dot:
    """One run in the picture, in its units: 640 wide, 200 high, from the upper left."""

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True)
class AdvicePlot:
    """The peaks of a component's runs over their order or over an input.

    Attributes:
        dots: The runs; their kind is `fits`, `killed` or `next`.
        asked_y: Height of the line at the memory to ask for.
        asked: The memory to ask for as text.
        top: The upper end of the vertical axis as text.
        left: The lower end of the horizontal axis as text.
        right: The upper end of the horizontal axis as text.
        across: What the horizontal axis shows.
    """

    dots: tuple[Dot, ...]
    asked_y: float
    asked: str
    top: str
    left: str
    right: str
    across: str


def build_plot(size: RightSize, inputs: Mapping[str, float]) -> AdvicePlot | None:
    """Return the picture of the peaks from which memory was learned; None without any peak.

    Args:
        size: The advice.
        inputs: What the next run gets.
    """
    seen = [r for r in size.seen if r.peak_mb > 0 or r.failed_mb > 0][-_MOST_POINTS:]
    if not seen or size.memory_mb is None:
        return None
    name = size.predictor
    if name is not None:
        seen = [run for run in seen if name in run.inputs]
    places = [run.inputs[name] if name is not None else float(i) for i, run in enumerate(seen, 1)]
    heights = [max(run.peak_mb, run.failed_mb) for run in seen]
    following = inputs.get(name, places[-1]) if name is not None else len(seen) + 1.0
    low, high = min([*places, following]), max([*places, following])
    top = 1.1 * max(size.memory_mb, *heights)

    def draw(place: float, height: float, kind: str, title: str) -> Dot:
        x = (place - low) / (high - low) if high > low else 0.5
        return Dot(round(x * _WIDTH, 1), round((1 - height / top) * _HEIGHT, 1), kind, title)

    dots = []
    for run, place, height in zip(seen, places, heights, strict=True):
        if run.failed_mb:
            text = f"killed for lack of memory with {quantity(run.failed_mb, 'MB')}"
        else:
            text = f"needed {quantity(run.peak_mb, 'MB')}"
        kind = "killed" if run.failed_mb else "fits"
        dots.append(draw(place, height, kind, f"{run.label}: {text}"))
    asked = quantity(float(size.memory_mb), "MB")
    dots.append(draw(following, float(size.memory_mb), "next", f"the next run: {asked}"))
    return AdvicePlot(
        tuple(dots),
        asked_y=round((1 - size.memory_mb / top) * _HEIGHT, 1),
        asked=asked,
        top=quantity(top, "MB"),
        left=f"{low:,.6g}" if name is not None else "oldest run",
        right=f"{high:,.6g}" if name is not None else "next run",
        across=name or "runs in the order of time",
    )


def render_advice(
    sizes: Mapping[str, RightSize],
    *,
    inputs: Mapping[str, float],
    lines: Mapping[str, Sequence[tuple[str, str]]],
) -> str:
    """Return the advice on each component or step as one HTML page.

    Args:
        sizes: The advice by name.
        inputs: What the next run gets.
        lines: Titles and lines to paste, by the same names.
    """
    plots = {name: build_plot(size, inputs) for name, size in sizes.items()}
    template = load_templates().get_template("advice.html")
    page = template.render(sizes=sizes, plots=plots, lines=lines, inputs=inputs)
    return page.encode("utf-8", "replace").decode()
