"""How long a process with several reports waits until they are sent."""

from __future__ import annotations

import time
from collections.abc import Callable

from mlflow_perf.publish.delivery_queue import Sending

# Many short runs must not wait for a slow server one after the other: the ends of all runs together
# wait this long at most, and a tenth of the time that the runs took.
_AT_ENDS_SEC, _SHARE = 10.0, 0.1
# Enough for a server that answers again: what is not sent by then is kept.
_LEAST_SEC = 3.0


class Patience:
    """Limits the waits at the ends of blocks or runs, and at the exit.

    While no report is sent, all waits together take `limit_sec` and a tenth of the time that passes
    between them; those of blocks three seconds each, if that is more.

    Args:
        limit_sec: The setting `exit_timeout`.
        clock: Returns seconds.

    Attributes:
        limit_sec: As above; it may be changed at any time.
    """

    def __init__(self, limit_sec: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_sec = limit_sec
        self._clock = clock
        self._at_ends_sec = _AT_ENDS_SEC
        self._vain_sec, self._vain_until = 0.0, clock()

    def for_block(self, limit_sec: float) -> float:
        """Return the most seconds that the end of a block with this `exit_timeout` may take."""
        self.limit_sec = limit_sec
        return min(limit_sec, max(_LEAST_SEC, self.left_sec()))

    def left_sec(self) -> float:
        """Return the most seconds that the exit may wait now."""
        return self._left_sec(self._clock())

    def _left_sec(self, now: float) -> float:
        forgotten_sec = _SHARE * (now - self._vain_until)
        return self.limit_sec - min(self.limit_sec, max(0.0, self._vain_sec - forgotten_sec))

    def await_report(self, sending: Sending, *, run_sec: float) -> None:
        """Wait at the end of a run until its report is sent, as long as that is allowed.

        Args:
            sending: The report.
            run_sec: How long the run took.
        """
        began, left_sec = self._clock(), self.left_sec()
        self._at_ends_sec = min(self.limit_sec, self._at_ends_sec + _SHARE * run_sec)
        sending.done.wait(max(0.0, min(self._at_ends_sec, left_sec)))
        self._at_ends_sec -= self._clock() - began
        self.note(is_sent=sending.is_sent, began=began)

    def note(self, *, is_sent: bool, began: float) -> None:
        """Note a wait that has just ended.

        Args:
            is_sent: Whether the report was sent.
            began: When the wait began, on the clock.
        """
        vain_sec, now = self.limit_sec - self._left_sec(began), self._clock()
        self._vain_sec = 0.0 if is_sent else min(self.limit_sec, vain_sec + now - began)
        self._vain_until = now
