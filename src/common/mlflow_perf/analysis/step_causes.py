"""Finds why the steps of a loop are slow: the cause, its rank, part and share of the time."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

from mlflow_perf.analysis.usage import ramp
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.format import format_count
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import NodeDocument

if TYPE_CHECKING:
    from mlflow_perf.recorders.steps.course import CourseRow
    from mlflow_perf.recorders.steps.stats import LoopRecord

LEAST_STEPS = 5
_SYNCHRONISES = re.compile(r"backward|sync|reduce|barrier|gather|communicat")
_CHECKPOINT = re.compile(r"checkpoint|save|dump", re.IGNORECASE)
_EVALUATION = re.compile(r"eval|valid|test", re.IGNORECASE)
_LOGGING = re.compile(r"log|track|metric|report", re.IGNORECASE)
_LEAST_ROWS = 6


@dataclass(frozen=True)
class StepCause:
    """One cause of slow steps.

    Attributes:
        cause: `straggler`, `input`, `garbage`, `page_faults`, `contended`, `checkpoint`,
            `evaluation`, `logging`, `rest`, `warm_up`, `growing`, `short_steps` or `part`.
        loop: Name of the loop.
        rank: The rank that it concerns; None for all.
        part: The part of the step that it concerns; None for none in particular.
        share: Share of the loop's time that it takes, from 0 to 1.
        evidence: The figures, as the first half of a sentence.
        do: What to do about it, as its second half.
        cpu_share: Share of the loop's time in which its own threads computed; None if unknown.
    """

    cause: str
    loop: str
    rank: int | None
    part: str | None
    share: float
    evidence: str
    do: str
    cpu_share: float | None = None

    def may_be_spent(self, word: str) -> bool:
        """Return whether the loop's own threads may have spent most of its share so.

        Args:
            word: `cpu` or `waiting`; of others, their CPU time tells nothing.
        """
        if self.cpu_share is None or word not in ("cpu", "waiting"):
            return True
        spent = self.cpu_share if word == "cpu" else 1.0 - self.cpu_share
        return spent >= self.share / 2

    @property
    def weight(self) -> float:
        """How much of the share is at stake."""
        return 0.5 if self.cause in ("part", "short_steps") else 1.0


@dataclass(frozen=True)
class _Loop:
    """A loop's ranks, and its mean step over all of them."""

    name: str
    ranks: Mapping[int, LoopRecord]
    step_ms: float
    parts_ms: Mapping[str, float]
    """Each part's mean time per step, `input` and `rest` included, `compute` and inner ones not,
    and without what the first step took for warming up."""
    loops: frozenset[str]
    """Names of parts that are loops, which have causes of their own."""

    def share(self, part: str) -> float:
        return self.parts_ms.get(part, 0.0) / self.step_ms

    def sum_figure(self, name: str) -> float:
        return sum(record.sums.get(name, 0.0) for record in self.ranks.values())

    def sum_share(self, figure: str) -> float:
        total = sum(record.step.total_ms for record in self.ranks.values())
        return self.sum_figure(figure) / total

    @property
    def count(self) -> int:
        return max(record.step.count for record in self.ranks.values())


def read_loops(nodes: Iterable[NodeDocument]) -> dict[str, dict[int, LoopRecord]]:
    """Return the loops of a run: loop → rank of any node → its steps.

    Steps that a later version wrote, or that are damaged, are left out: the rest of the document
    has its report without them.
    """
    recorded = [node.steps for node in nodes if node.steps]
    if not recorded:
        return {}
    # Most documents have no steps: `mlflow-perf show` does not wait for the recorder's import.
    from mlflow_perf.recorders.steps.metrics import StepMetrics

    loops = StepMetrics()
    for steps in recorded:
        with contextlib.suppress(DocumentError):
            loops.merge(StepMetrics.from_dict(steps))
    return loops.records()


def find_step_causes(loops: Mapping[str, Mapping[int, LoopRecord]]) -> list[StepCause]:
    """Return the causes of slow steps, the greatest share of the loop's time first.

    A dominant part or short steps are no waste by themselves, so they count half.

    Args:
        loops: Loop → rank → its record. Loops of less than five steps have no cause.
    """
    if not loops:
        return []
    from mlflow_perf.recorders.steps.stats import name_as_part  # as in `read_loops`

    of_loops = frozenset(map(name_as_part, loops))
    causes = []
    for name, ranks in loops.items():
        counted = {rank: r for rank, r in ranks.items() if r.step.count >= LEAST_STEPS}
        if counted:
            divided = [_divide_warm(record) for record in counted.values()]
            parts = dict.fromkeys(part for parts_ms in divided for part in parts_ms)
            means = {part: fmean(d.get(part, 0.0) for d in divided) for part in parts}
            step_ms = fmean(record.step.mean_ms for record in counted.values())
            loop = _Loop(name, counted, step_ms, means, of_loops)
            if loop.step_ms > 0:
                is_known = all("cpu_ms" in record.sums for record in counted.values())
                cpu_share = loop.sum_share("cpu_ms") if is_known else None
                found = [cause for find in _FINDERS for cause in find(loop)]
                causes += [replace(cause, cpu_share=cpu_share) for cause in found]
    return sorted(causes, key=lambda cause: -cause.share * cause.weight)


def _read_warm_up(record: LoopRecord) -> float:
    """Return how much longer the first step took than the usual one; 0.0 where it is no outlier."""
    usual = record.step.percentiles([50])[0]
    return record.first_ms - usual if record.first_ms >= 5 * usual else 0.0


def _divide_warm(record: LoopRecord) -> dict[str, float]:
    """Return the mean time per step of each part, without what the first step took longer."""
    divided, left = record.divide(), _read_warm_up(record)
    for part in [part for part in divided if part in record.parts] if left else []:
        times = record.parts[part]
        excess = min(left, times.max_ms - times.percentiles([50])[0])
        if excess >= 0.2 * left:
            left -= excess
            divided[part] = max(0.0, divided[part] - excess / record.step.count)
    if "rest" in divided:
        divided["rest"] = max(0.0, divided["rest"] - left / record.step.count)
    return divided


def _say(loop: _Loop) -> str:
    return "The loop" if loop.name == "step" else f"The loop {loop.name!r}"


def _format_ms(value: float) -> str:
    return format_duration(value / 1e3)


def _find_straggler(loop: _Loop) -> Iterator[StepCause]:
    """Find the rank that the others wait for, and the part in which it is slower than they are.

    Where ranks wait for each other, all of them have equally long steps, and the others' wait is
    in a part that synchronises, such as `backward`. With three ranks or more nearly all of them
    wait, so that nobody exceeds the median there; of two ranks, the part that does not
    synchronise is the cause.
    """
    if len(loop.ranks) < 2:
        return
    divided = {rank: record.divide() for rank, record in loop.ranks.items()}
    found = []
    for part in loop.parts_ms:
        rank = max(divided, key=lambda rank: divided[rank].get(part, 0.0))
        others = median(d.get(part, 0.0) for r, d in divided.items() if r != rank)
        found.append((divided[rank].get(part, 0.0) - others, rank, part, others))
    found.sort(reverse=True)
    excess, rank, part, others = next(
        (row for row in found if not _SYNCHRONISES.search(row[2]) and row[0] > 0.4 * found[0][0]),
        found[0],
    )
    # The step of the ranks that wait, or of the one that is late.
    step_ms = max(record.step.mean_ms for record in loop.ranks.values())
    if excess < 0.1 * step_ms:
        return
    text = (
        f"Rank {rank} is slow in {part!r}: {_format_ms(others + excess)} a step where the others "
        f"take {_format_ms(others)}, and they wait for it"
    )
    do = "look at what that rank has to do there, and at its node"
    if part == "input":
        do = "look at that rank's share of the data, its storage and its loader"
    yield StepCause("straggler", loop.name, rank, part, excess / step_ms, text, do)


def _find_input(loop: _Loop) -> Iterator[StepCause]:
    """Find a wait for data that most ranks have, not only a slow one."""
    shares = [_divide_warm(r)["input"] / (r.step.mean_ms or 1.0) for r in loop.ranks.values()]
    share = median(shares) if len(shares) > 2 else min(shares)
    if share >= 0.1:
        text = f"{_say(loop)} waited {100 * share:.0f}% of its time for data"
        do = "more loader workers, prefetching or a faster format would shorten that"
        yield StepCause("input", loop.name, None, "input", share, text, do)


def _find_interruptions(loop: _Loop) -> Iterator[StepCause]:
    """Find interruptions of the loop's thread: garbage collector, page faults, other threads."""
    collecting = loop.sum_share("gc_ms")
    if collecting >= 0.04:
        text = f"Python's garbage collector stopped the loop for {100 * collecting:.0f}% of its "
        text += f"time ({format_count(loop.sum_figure('gc_count'), 'collection')})"
        do = "call gc.freeze() before the loop, or collect by hand between epochs"
        yield StepCause("garbage", loop.name, None, None, collecting, text, do)
    steps = sum(record.step.count for record in loop.ranks.values())
    minor, major = (loop.sum_figure(f"{kind}_faults") / steps for kind in ("minor", "major"))
    in_kernel = loop.sum_share("kernel_ms")
    if (in_kernel >= 0.1 and minor >= 500) or major >= 20:
        text = f"{minor + major:,.0f} page faults a step; the kernel took {100 * in_kernel:.0f}% "
        text += "of the loop's time"
        do = "reuse buffers instead of taking new memory in each step"
        if major >= 20:
            text += f", and {major:,.0f} of them read from a disk"
            do = "memory is short: use less of it, or ask for more"
        yield StepCause("page_faults", loop.name, None, None, in_kernel, text, do)
    waiting = loop.sum_share("run_delay_ms")
    if waiting >= 0.1:
        text = f"The loop's thread waited {100 * waiting:.0f}% of its time for a CPU"
        do = "others use its CPUs, or the job runs more threads than it may use CPUs"
        yield StepCause("contended", loop.name, None, None, min(1.0, waiting), text, do)


def _find_named_parts(loop: _Loop) -> Iterator[StepCause]:
    """Find parts that take more than such a part should, and the part that dominates."""
    shares = {part: loop.share(part) for part in loop.parts_ms if part not in ("input", "rest")}
    dominant = max(shares, key=shares.__getitem__, default="")
    for part, share in shares.items():
        took = f"{_say(loop)} spent {100 * share:.0f}% of its time in {part!r}"
        count = max(
            (r.parts[part].count for r in loop.ranks.values() if part in r.parts), default=0
        )
        often = f"{took} ({format_count(count, 'time')} in {format_count(loop.count, 'step')})"
        for cause, names, least, do in _PART_RULES:
            if names.search(part):
                if share >= least:
                    yield StepCause(cause, loop.name, None, part, share, often, do)
                break
        else:
            least = 0.25 if part == "optimizer" else 0.5
            has_cause = part == "compute" or part in loop.loops
            if part == dominant and share >= least and not has_cause:
                do = "a profile of that part says where to begin"
                yield StepCause("part", loop.name, None, part, share, took, do)
    rest = loop.share("rest")
    if rest >= 0.15:
        text = f"{_say(loop)} spent {100 * rest:.0f}% of its time in none of its parts"
        do = "look for calls between the parts, such as logging to a server at each step"
        yield StepCause("rest", loop.name, None, "rest", rest, text, do)


_PART_RULES = (
    ("checkpoint", _CHECKPOINT, 0.05, "write checkpoints less often, or in the background"),
    ("evaluation", _EVALUATION, 0.15, "evaluate less often, or on fewer items"),
    ("logging", _LOGGING, 0.05, "log every few steps instead of each, or in the background"),
)
"""Cause, names of such parts, least share, and what to do."""


def _find_warm_up(loop: _Loop) -> Iterator[StepCause]:
    record = max(loop.ranks.values(), key=lambda r: r.first_ms)
    longer_ms = _read_warm_up(record)
    share = longer_ms / record.step.total_ms
    if share >= 0.08:
        usual = record.first_ms - longer_ms
        text = f"The first step took {_format_ms(record.first_ms)}, the usual one "
        text += f"{_format_ms(usual)}: {100 * share:.0f}% of the loop was warming up"
        do = "keep workers, caches and compiled code, or let more steps share the start"
        yield StepCause("warm_up", loop.name, None, None, share, text, do)


def _find_growing(loop: _Loop) -> Iterator[StepCause]:
    """Find steps that take longer and longer, and the part that grows; the first row is warm-up."""
    record = max(loop.ranks.values(), key=lambda r: r.step.total_ms)
    rows = record.course.rows[1:]
    if len(rows) < _LEAST_ROWS:
        return
    third = len(rows) // 3
    thirds = rows[:third], rows[third:-third], rows[-third:]

    def usual_ms(rows: list[CourseRow], part: str | None = None) -> float:
        # The median: on a busy machine a single row may be several times as long.
        times = ((r.step_ms if part is None else r.parts_ms.get(part, 0.0)) / r.count for r in rows)
        return median(times)

    first, middle, last = map(usual_ms, thirds)
    # What others do to a step makes it longer, never shorter: the short ones must grow as well.
    short = [sorted(row.step_ms / row.count for row in third)[len(third) // 4] for third in thirds]
    if any(b < 1.1 * a for times in ([first, middle, last], short) for a, b in pairwise(times)):
        return
    grown = {
        part: usual_ms(thirds[2], part) - usual_ms(thirds[0], part)
        for part in record.divide()
        if part not in ("rest", "compute")
    }
    part = max(grown, key=grown.__getitem__, default="")
    where = part if grown.get(part, 0.0) >= 0.4 * (last - first) else None
    at_start = max(0.0, first - (middle - first) / 2)  # the first third has grown as well
    share = 1.0 - at_start * sum(row.count for row in rows) / sum(row.step_ms for row in rows)
    text = f"Steps grew from {_format_ms(first)} to {_format_ms(last)}"
    text += f", most of it in {where!r}" if where else ""
    do = "look for what is kept from step to step, such as a list or a graph that grows"
    yield StepCause("growing", loop.name, None, where, share, text, do)


def _find_short_steps(loop: _Loop) -> Iterator[StepCause]:
    usual = median(record.step.percentiles([50])[0] for record in loop.ranks.values())
    share = (1.0 - ramp(usual, 1.0, 3.0)) * (1.0 - loop.share("input"))
    if loop.count >= 200 and share >= 0.3:
        text = f"{_say(loop)} made {loop.count:,} steps of {usual:.2g} ms"
        do = "larger batches spread the fixed costs of a step over more items"
        yield StepCause("short_steps", loop.name, None, None, share, text, do)


_FINDERS: tuple[Callable[[_Loop], Iterator[StepCause]], ...] = (
    _find_straggler,
    _find_input,
    _find_interruptions,
    _find_named_parts,
    _find_warm_up,
    _find_growing,
    _find_short_steps,
)
