"""Show the progress of a long command: a bar on a terminal, after two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mlflow_perf.cli._tables import clean

if TYPE_CHECKING:
    from rich.progress import Progress

_AFTER_SEC = 2.0
_EVERY_SEC = 0.1


class ProgressBar:
    """A bar on the terminal for an activity of more than two seconds; elsewhere nothing.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + _AFTER_SEC
        self._shown: Progress | None = None

    def __call__(self, what: str, share: float) -> None:
        """Show the activity and its share, from 0 to 1; at most ten times a second."""
        if not sys.stderr or not sys.stderr.isatty() or self._clock() < self._due:
            return
        if self._shown is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            self._shown = Progress(
                BarColumn(30),
                TaskProgressColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(file=sys.stderr),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._shown.add_task("", total=1.0)
            self._shown.start()
        self._shown.update(
            self._shown.task_ids[0],
            description=clean(what),
            completed=min(1.0, share),
            refresh=True,
        )
        self._due = self._clock() + _EVERY_SEC

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._shown is not None:
            self._shown.stop()


def watched(
    items: Iterable[Any], count: int, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Any]:
    """Yield the items; show a bar on a terminal if that takes long.

    Args:
        items: The items.
        count: Their expected number.
        clock: Returns the time in seconds.
    """
    bar = ProgressBar(clock)
    try:
        for done, item in enumerate(items, 1):
            bar(f"{done:,}/{count:,}", done / max(1, count))
            yield item
    finally:
        bar.close()
