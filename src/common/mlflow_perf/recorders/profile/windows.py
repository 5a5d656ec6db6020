"""What was sampled for one recording: seconds by stack and by bucket of time, of bounded size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlflow_perf.model.samples import FINEST_SEC, Function, RawStacks, Sample
from mlflow_perf.recorders.profile.stack_spool import StackSpool

if TYPE_CHECKING:
    from pathlib import Path

_MOST_STACKS = 4000
_MOST_BUCKETS = 128
_MOST_CELLS = 20_000
_REST = "(other stacks)"
_MOMENT_SEC = 1e-6  # less is what rounding leaves


Amounts = tuple[float, float, int]
"""Wall seconds, CPU seconds, number of samples."""


class StackWindow:
    """Adds up the samples of one process from its beginning on, for one recording.

    Args:
        rate_hz: The rate that was asked for; None for the default one.

    Attributes:
        spool: Where the samples are written too, so that they survive the process; None nowhere.
        begin: When the recording's block began, in seconds of the monotonic clock; infinite before.
        end: When it ended; infinite before.
    """

    def __init__(self, rate_hz: float | None = None) -> None:
        self._rate_hz = rate_hz
        self._stacks: dict[Sample, int] = {}
        self._buckets: dict[int, dict[int, list[float]]] = {}
        self._cells = 0
        self._width = FINEST_SEC
        self.spool: StackSpool | None = None
        self.begin = self.end = math.inf

    @property
    def is_open(self) -> bool:
        """Whether the recording's block has begun and not ended."""
        return self.begin < math.inf and self.end == math.inf

    @property
    def source(self) -> str | None:
        """Name of the spool file; None without one."""
        return None if self.spool is None else self.spool.source

    def spool_to(self, folder: Path | str | None, *, is_asked: bool = True) -> None:
        """Write each sample from now on to a file in a spool folder; None ends the writing.

        Args:
            folder: The spool folder.
            is_asked: Whether this process itself asked to be sampled.
        """
        if self.spool is not None:
            self.spool.close()
        if folder is not None:
            self.spool = StackSpool(folder, self.as_dict, is_asked=is_asked)

    def save_to(self, folder: Path) -> None:
        """Write everything so far to a file in a spool folder, and nothing more."""
        self.spool_to(folder)
        if self.spool is not None:
            self.spool.write_all()
        self.spool_to(None)

    def add(self, sample: Sample, at: float, wall: float, cpu: float, count: int = 1) -> None:
        """Add seconds to a stack.

        Args:
            sample: The stack.
            at: Unix time in the middle of them.
            wall: Seconds of wall time.
            cpu: Seconds of CPU time.
            count: How many samples found it.
        """
        if len(self._stacks) >= _MOST_STACKS and sample not in self._stacks:
            sample = Sample(sample.root, 0, (Function(_REST, "", 0, True),))
        is_new = sample not in self._stacks
        stack = self._stacks.setdefault(sample, len(self._stacks))
        cells = self._buckets.setdefault(int(at / self._width), {})
        cell = cells.get(stack)
        if cell is None:
            cells[stack] = [wall, cpu, count]
            self._cells += 1
            if len(self._buckets) > _MOST_BUCKETS or self._cells > _MOST_CELLS:
                self._widen()
        else:
            cell[0] += wall
            cell[1] += cpu
            cell[2] += count
        if self.spool is not None:
            known = sample if is_new else None
            self.spool.add(stack, at, wall=wall, cpu=cpu, count=count, sample=known)

    def add_span(
        self, sample: Sample, span: tuple[float, float], wall: float, cpu: float, count: int
    ) -> None:
        """Add seconds to a stack, spread evenly over a span of Unix time."""
        start, end = span
        parts = max(1, math.ceil((end - start) / self._width))
        for i in range(parts):
            at = start + (i + 0.5) / parts * (end - start)
            samples = count * (i + 1) // parts - count * i // parts
            self.add(sample, at, wall / parts, cpu / parts, samples)

    def add_part(
        self, samples: Sequence[Sample], span: tuple[float, float], epoch: float, amounts: Amounts
    ) -> None:
        """Add the part of a span that lies within the block, in equal parts to several stacks.

        Args:
            samples: The stacks.
            span: Begin and end, in seconds of the monotonic clock.
            epoch: Unix time at which that clock was 0.
            amounts: Wall and CPU seconds of the whole span, and how many samples it has.
        """
        start, end = span
        passed = min(end, self.end) - max(start, self.begin)
        if passed > _MOMENT_SEC:
            wall, cpu, count = amounts
            part = min(1.0, passed / (end - start)) / len(samples)
            at = epoch + (start + end) / 2
            for i, sample in enumerate(samples):
                self.add(sample, at, wall * part, cpu * part, 0 if i else count)

    def _widen(self) -> None:
        """Merge each two neighbouring buckets."""
        self._width *= 2
        before, self._buckets, self._cells = self._buckets, {}, 0
        for place, cells in before.items():
            into = self._buckets.setdefault(place // 2, {})
            for stack, (wall, cpu, count) in cells.items():
                had = into.setdefault(stack, [0.0, 0.0, 0])
                had[0] += wall
                had[1] += cpu
                had[2] += count
        self._cells = sum(map(len, self._buckets.values()))
        if len(self._buckets) > 1 and self._cells > _MOST_CELLS:
            self._widen()

    def as_raw(self) -> RawStacks:
        """Return everything added so far."""
        functions: dict[Function, int] = {}
        stacks = []
        for sample in list(self._stacks):
            path = tuple(functions.setdefault(one, len(functions)) for one in sample.path)
            stacks.append((sample.root, sample.line, path))
        cells = [
            (place * self._width, self._width, stack, wall, cpu, int(count))
            for place, bucket in list(self._buckets.items())
            for stack, (wall, cpu, count) in list(bucket.items())
        ]
        return RawStacks(list(functions), stacks, cells, self._rate_hz)

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return self.as_raw()._asdict()
