"""When a block of `report()` takes the blocks of other threads in."""

from __future__ import annotations

from mlflow_perf.core.clock import read_monotonic
from mlflow_perf.core.threads import Event, get_ident

_ROOM_SEC = 1.0


class Turn:
    """The time between a block's beginning and its end, in which blocks of other threads join it.

    Args:
        begin_limit_sec: Most seconds that other threads wait for the beginning.

    Attributes:
        has_begun: Set once the block records; what another thread does before that is in no report.
        has_ended: Whether the block has ended.
        has_room: Set once the next block can have a report of its own.
    """

    def __init__(self, begin_limit_sec: float) -> None:
        self.has_begun, self.has_ended, self.has_room = Event(), False, Event()
        self._begin_limit_sec, self._thread = begin_limit_sec, get_ident()
        self._asked = read_monotonic()

    @property
    def age_sec(self) -> float:
        """How long ago the job asked for the block, whose beginning takes a while."""
        return read_monotonic() - self._asked

    def await_beginning(self) -> None:
        """Wait for the beginning; not in the thread that begins, as a signal's handler may be."""
        if get_ident() != self._thread:
            self.has_begun.wait(self._begin_limit_sec)

    def wait(self) -> None:
        """Wait until the block has begun, or until it has ended and no longer takes others in."""
        self.await_beginning()
        if self.has_ended:
            self.has_room.wait(_ROOM_SEC)
