"""The interpreter's switch interval, shortened while nobody but the sampler waits for its lock.

Work of less than the usual 5 ms would count as the sleep after it. While only one thread of the job
works, the sampler therefore asks for the lock after 0.103 ms. While it has the lock, the interval
is 5.003 ms, or the job's thread would have it back in the midst of a sample.

A thread that waits for the lock wakes up each time that the interval is over. A call into C that
keeps the lock for a second would wake the sampler 10,000 times, for a tenth of a CPU. Where one was
met, the next wait is for 1.003 or 5.003 ms at a time.

No job sets these odd values itself. So where one is found, it is ours, even if the job has read it,
set another one for a time, and put it back.
"""

from __future__ import annotations

from mlflow_perf.core.originals import sys

_QUICK_SEC, _SLOWER_SEC, _CALM_SEC = 1.03e-4, 1.003e-3, 5.003e-3
_LATE_SEC, _VERY_LATE_SEC = 3e-3, 2e-2
_ROUNDED_SEC = 1.5e-6  # the interpreter keeps whole microseconds
_USUAL_SEC = 0.005


class SwitchInterval:
    """Sets the interval for one sampler, and gives it back.

    Attributes:
        is_set: Whether the interval is the sampler's, or has been since one thread alone works.
    """

    def __init__(self) -> None:
        now = sys.getswitchinterval()
        self._jobs_sec = _USUAL_SEC if _is_ours(now) else now
        self.is_set = False

    def restore(self) -> None:
        """Give the interpreter the job's interval back."""
        if _is_ours(sys.getswitchinterval()):
            sys.setswitchinterval(self._jobs_sec)
        self.is_set = False

    def choose(self, working: int, late_sec: float = 0.0) -> None:
        """Ask for the lock quickly while nobody else waits for it.

        Args:
            working: How many threads of the job compute.
            late_sec: How long the sampler has just waited for the lock, beyond the interval.
        """
        now = sys.getswitchinterval()
        if working > 1:
            self.restore()
        elif not _is_ours(now) and self.is_set:
            pass  # the job has set another one: that is the job's
        else:
            if not _is_ours(now):
                self._jobs_sec = now
                self.is_set = True
            slower_sec = _SLOWER_SEC if late_sec < _VERY_LATE_SEC else _CALM_SEC
            sys.setswitchinterval(_QUICK_SEC if late_sec < _LATE_SEC else slower_sec)

    def after_wait(self) -> float:
        """Return the interval in seconds to set when the sampler gets the lock."""
        return _CALM_SEC if self.is_set else sys.getswitchinterval()

    def note(self, interval_sec: float) -> None:
        """Put back what was set at the end of the wait, if that was the job's, set meanwhile."""
        if not _is_ours(interval_sec):
            sys.setswitchinterval(interval_sec)


def _is_ours(interval_sec: float) -> bool:
    ours = (_QUICK_SEC, _SLOWER_SEC, _CALM_SEC)
    return any(abs(interval_sec - one) < _ROUNDED_SEC for one in ours)
