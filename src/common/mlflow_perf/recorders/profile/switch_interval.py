"""The interpreter's switch interval, shortened while nobody but the sampler waits for its lock.

Work of less than the usual 5 ms would count as the sleep after it. While only one thread of the job
works, the sampler therefore asks for the lock after 0.103 ms. While it has the lock, the interval
is 5.003 ms, or the job's thread would have it back in the midst of a sample. No job sets these odd
values itself. So where one is found, it is ours, even if the job has read it, set another one for a
time, and put it back.
"""

from __future__ import annotations

from mlflow_perf.core.originals import sys

_QUICK_SEC, _CALM_SEC = 1.03e-4, 5.003e-3
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

    def choose(self, working: int) -> None:
        """Ask for the lock quickly while nobody else waits for it.

        Args:
            working: How many threads of the job compute.
        """
        if working > 1:
            self.restore()
        elif _is_ours(now := sys.getswitchinterval()):
            sys.setswitchinterval(_QUICK_SEC)
        elif not self.is_set:  # else the job has set another one: that is the job's
            self._jobs_sec = now
            sys.setswitchinterval(_QUICK_SEC)
            self.is_set = True

    def after_wait(self) -> float:
        """Return the interval in seconds to set when the sampler gets the lock."""
        return _CALM_SEC if self.is_set else sys.getswitchinterval()

    def note(self, interval_sec: float) -> None:
        """Put back what was set at the end of the wait, if that was the job's, set meanwhile."""
        if not _is_ours(interval_sec):
            sys.setswitchinterval(interval_sec)


def _is_ours(interval_sec: float) -> bool:
    return any(abs(interval_sec - ours) < _ROUNDED_SEC for ours in (_QUICK_SEC, _CALM_SEC))
