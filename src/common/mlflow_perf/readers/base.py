"""The interface of a reader: a source of values that the sampler asks once per report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mlflow_perf.records import Column


@runtime_checkable
class Reader(Protocol):
    """A source of gauges and counters.

    The constructor takes the source as an argument (a procfs root, a psutil module, a URL), so that
    a test can pass a recorded one. It raises `SourceUnavailableError` where the source does not
    exist. The sampling thread calls `read` at the job's start, once per interval and at the job's
    end. `read` must not block: ask a source that may block (a network mount, an HTTP endpoint) in a
    thread of the reader's own, and let `read` return the newest answer.

    Attributes:
        name: Short name for messages: `disk`.
        columns: The columns that `read` may put into a report.
    """

    name: str
    columns: Sequence[Column]

    def read(self, report: dict[str, float]) -> None:
        """Put the present values into `report`, by column name.

        Put gauges at their present level, and counters as the source counts them (since boot, for
        example): the sampler takes the difference from the job's start and handles resets. Leave
        out a value that is unknown now. An exception leaves this reader's values out of this
        report; the sampler warns once and asks again at the next sample.
        """
        ...

    def close(self) -> None:
        """Release descriptors and threads; `read` is not called again."""
        ...
