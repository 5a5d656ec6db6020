"""The loops of a run as plain data: the parts of a step, per rank and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlflow_perf.analysis.step_texts import describe_loop
from mlflow_perf.core.format import number, quantity
from mlflow_perf.recorders.steps.course import halve
from mlflow_perf.recorders.steps.stats import LoopRecord, StepTimes, sum_ranks

_MOST_LOOPS = 6
_MOST_RANKS = 16
_MOST_POINTS = 120
_MOST_PARTS = 12
_FIXED_COLOURS = {"input": 1, "forward": 0, "compute": 0, "update": 0, "backward": 3,
                  "optimizer": 2, "rest": 7}  # fmt: skip
_OTHER_COLOURS = (5, 6, 4)


@dataclass(frozen=True)
class Segment:
    """A part of a bar, or of the steps over time.

    Attributes:
        part: Name of the part.
        colour: Number of its colour on the page.
        width_pct: Its share of the longest bar.
        text: Its mean time per step.
    """

    part: str
    colour: int
    width_pct: float
    text: str


@dataclass(frozen=True)
class Bar:
    """The mean step of one rank.

    Attributes:
        label: The rank.
        text: Its time.
        segments: Its parts, from the wait for the item on.
    """

    label: str
    text: str
    segments: list[Segment]


@dataclass(frozen=True)
class StepCourse:
    """The steps over time, as shapes in a box of 1000 × 100.

    Attributes:
        label: Whose steps they are.
        shapes: Each part and the points of its outline.
        top: Upper end of the vertical axis, as text.
        end: End of the horizontal axis, as text.
    """

    label: str
    shapes: list[tuple[Segment, str]]
    top: str
    end: str


@dataclass(frozen=True)
class LoopView:
    """One loop.

    Attributes:
        name: Its name.
        summary: One sentence.
        legend: The parts in their order.
        bars: The mean step of each rank, the slowest ranks first where there are many.
        left_out: How many more ranks there are.
        rows: Part → texts of count, mean, percentiles and maximum, over all ranks.
        course: The steps over time; None where they ended within one row.
    """

    name: str
    summary: str
    legend: list[Segment]
    bars: list[Bar]
    left_out: int
    rows: list[tuple[str, list[str]]]
    course: StepCourse | None


def build_loop_views(loops: Mapping[str, Mapping[int, LoopRecord]]) -> list[LoopView]:
    """Return the loops that took most time.

    Args:
        loops: Loop → rank → its record.
    """

    def total_ms(name: str) -> float:
        return max((record.step.total_ms for record in loops[name].values()), default=0.0)

    names = [name for name in sorted(loops, key=total_ms, reverse=True) if total_ms(name) > 0]
    return [_build_view(name, loops[name]) for name in names[:_MOST_LOOPS]]


def _build_view(name: str, ranks: Mapping[int, LoopRecord]) -> LoopView:
    whole = sum_ranks(ranks)
    divided = whole.divide()
    shown = sorted(divided, key=divided.__getitem__, reverse=True)[:_MOST_PARTS]
    parts = [part for part in divided if part in shown]
    spare = (number for number in _OTHER_COLOURS * len(parts))
    colours = {
        part: _FIXED_COLOURS[part] if part in _FIXED_COLOURS else next(spare) for part in parts
    }
    slowest = sorted(ranks, key=lambda rank: -ranks[rank].step.mean_ms)
    kept = sorted(slowest[:_MOST_RANKS])
    # The parts of tasks side by side are longer than their step together.
    each = ranks.values()
    longest = max(max(r.step.mean_ms, sum(r.divide().values())) for r in each) or 1.0

    def cut(record: LoopRecord) -> list[Segment]:
        return [
            Segment(part, colours[part], round(100 * value / longest, 2), quantity(value, "ms"))
            for part, value in record.divide().items()
            if part in colours
        ]

    return LoopView(
        name,
        describe_loop(name, ranks),
        cut(whole),
        [Bar(f"rank {r}", quantity(ranks[r].step.mean_ms, "ms"), cut(ranks[r])) for r in kept],
        len(ranks) - len(kept),
        [("step", _format_row(whole.step))]
        + [(part, _format_row(times)) for part, times in whole.parts.items()],
        _draw_course(slowest[0], ranks[slowest[0]], parts, colours, many=len(ranks) > 1),
    )


def _format_row(times: StepTimes) -> list[str]:
    figures = (times.mean_ms, *times.percentiles((50, 95, 99)), times.max_ms)
    return [number(times.count), *(quantity(figure, "ms") for figure in figures)]


def _draw_course(
    rank: int, record: LoopRecord, parts: Sequence[str], colours: Mapping[str, int], *, many: bool
) -> StepCourse | None:
    """Return the mean step of each row of a course as stacked shapes, with steps for edges."""
    rows = record.course.rows
    while len(rows) > _MOST_POINTS:
        rows = halve(rows)
    if len(rows) < 2:
        return None
    start = min(record.began, rows[0].timestamp - rows[0].step_ms / 1e3)
    ends = [row.timestamp - start for row in rows]
    length = max(ends[-1], 1e-9)
    xs = [0.0, *(round(1000 * end / length, 1) for end in ends)]
    layers = []
    for row in rows:
        count = max(1, row.count)
        layer = {part: row.parts_ms.get(part, 0.0) / count for part in parts}
        if "rest" in layer:
            layer["rest"] = max(0.0, row.step_ms / count - sum(layer.values()))
        layers.append(layer)
    # A few long steps, such as the first one, must not flatten all others; a tenth are not few.
    heights = sorted(sum(layer.values()) for layer in layers)
    top = min(heights[-1], 3 * heights[len(heights) * 9 // 10]) or 1.0
    below = [0.0] * len(rows)
    shapes = []
    for part in parts:
        above = [low + layer[part] for low, layer in zip(below, layers, strict=True)]
        edge = [(x, y) for i, y in enumerate(above) for x in (xs[i], xs[i + 1])]
        base = [(x, y) for i, y in enumerate(below) for x in (xs[i], xs[i + 1])]
        points = " ".join(
            f"{x:g},{max(0.0, 100 - 100 * y / top):.1f}" for x, y in [*edge, *reversed(base)]
        )
        mean = sum(layer[part] for layer in layers) / len(layers)
        shapes.append((Segment(part, colours[part], 0.0, quantity(mean, "ms")), points))
        below = above
    label = f"Mean step over time, of rank {rank}" if many else "Mean step over time"
    return StepCourse(label, shapes, quantity(top, "ms"), quantity(length, "s"))
