"""What a reader is: a source of values that the sampler asks once per report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mlflow_perf.records import Column

__all__ = ["Reader"]


@runtime_checkable
class Reader(Protocol):
    """A source of gauges and counters.

    A reader is made with its source as an argument (a procfs root, a psutil module, a URL), so that
    a test can hand it a recorded one, and raises `SourceUnavailableError` there when the source
    does not exist. `read` is called from the sampling thread: at the job's start, then once per
    interval, and at its end. It must not block: what may (a network mount, an HTTP endpoint) is
    asked in a thread of the reader's own, and `read` hands over the newest answer.

    Attributes:
        name: Short name for messages: `disk`.
        columns: What `read` may put into a report.
    """

    name: str
    columns: Sequence[Column]

    def read(self, report: dict[str, float]) -> None:
        """Put the present values into `report`, by column name.

        Gauges as they stand; counters as the source counts them (since boot, say): the sampler
        takes the difference from the job's start and copes with resets. A value that is not there
        now is left out. An exception leaves this reader's values out of this report; the sampler
        warns once and asks again next time.
        """
        ...

    def close(self) -> None:
        """Let go of descriptors and threads; `read` is not called again."""
        ...
