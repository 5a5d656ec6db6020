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

_OURS_SEC = (1.03e-4, 1.003e-3, 5.003e-3)
_FEW_WAKES, _MANY_WAKES = 3, 30
_ROUNDED_SEC = 1.5e-6  # the interpreter keeps whole microseconds
_USUAL_SEC = 0.005


class SwitchInterval:
    """Sets the interval for one sampler, and gives it back.

    Attributes:
        CALM_SEC: What it is set to while the sampler has the lock, in seconds.
        is_set: Whether the interval is the sampler's, or has been since one thread alone works.
    """

    CALM_SEC = _OURS_SEC[-1]

    def __init__(self) -> None:
        now = sys.getswitchinterval()
        self._jobs_sec = _USUAL_SEC if _is_ours(now) else now
        self._step = 0
        self.is_set = False

    def restore(self) -> None:
        """Give the interpreter the job's interval back."""
        if _is_ours(sys.getswitchinterval()):
            sys.setswitchinterval(self._jobs_sec)
        self.is_set = False

    def choose(self, working: int, wakes: int = 0) -> None:
        """Ask for the lock quickly while nobody else waits for it.

        Args:
            working: How many threads of the job compute.
            wakes: How often the sampler woke up in its last wait for the lock.
        """
        now = sys.getswitchinterval()
        if working > 1:
            self.restore()
        elif _is_ours(now) or abs(now - self._jobs_sec) < _ROUNDED_SEC:
            if wakes > _MANY_WAKES:
                self._step = min(self._step + 1, len(_OURS_SEC) - 1)
            elif wakes <= _FEW_WAKES:
                self._step = 0
            sys.setswitchinterval(_OURS_SEC[self._step])
            self.is_set = True
        # else the job has set another one: that is the job's

    def note(self, interval_sec: float) -> None:
        """Put back what `CALM_SEC` has replaced, if that was the job's, set meanwhile."""
        if self.is_set and not _is_ours(interval_sec):
            sys.setswitchinterval(interval_sec)


def _is_ours(interval_sec: float) -> bool:
    return any(abs(interval_sec - ours) < _ROUNDED_SEC for ours in _OURS_SEC)
