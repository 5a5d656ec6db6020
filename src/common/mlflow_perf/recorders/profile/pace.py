"""How long the sampler waits for its next sample, so that the job hardly gets slower."""

from __future__ import annotations

from mlflow_perf.core.clock import read_monotonic

# A job of 200 ms needs more samples than a second of a job of an hour. Each row: until which age,
# how often where samples are cheap, and how often at least.
_PACE = (
    (0.3, 0.005, 0.005),
    (5.0, 0.02, 0.05),
    (20.0, 0.02, 0.25),
    (120.0, 0.025, 0.5),
    (float("inf"), 0.05, 0.5),
)
_OWN_SHARE = 0.008
_OWN_SHARE_AT_GIVEN_RATE = 0.1
# The least pace alone would let a job of 3,000 threads take half as long again: each is looked at
# while the sampler holds the interpreter's lock. A sample that takes long is followed by a rest.
_LONG_SEC, _MOST_SHARE, _LONGEST_REST_SEC = 0.0025, 0.05, 2.0
_FIRST_COST_SEC = 1e-4
# Twice a sample the job's thread gives up its CPU, and on a full machine gets it back when the time
# slice of the process that took it is over: 3.8 ms in all, measured beside two others on two CPUs.
_RETURN_SEC = 0.004
_GOLDEN = 0.6180339887498949


class Pace:
    """Says when the next sample is due.

    Args:
        rate_hz: Samples per second; None for many at first, then fewer.
    """

    def __init__(self, rate_hz: float | None) -> None:
        self._rate_hz = rate_hz
        self._cost_sec, self._rest_sec = _FIRST_COST_SEC, 0.0
        self._looks = self._displaced = 0
        self._began = read_monotonic()

    def note(self, cpu_sec: float, cost_sec: float) -> None:
        """Note what a sample took.

        Args:
            cpu_sec: CPU time of the sampler.
            cost_sec: How long it kept the job's thread from going on.
        """
        is_long = cpu_sec > _LONG_SEC
        self._rest_sec = min(_LONGEST_REST_SEC, cpu_sec / _MOST_SHARE) if is_long else 0.0
        # A stack that is new has to be named, once.
        self._cost_sec += 0.1 * (min(cost_sec, 4 * self._cost_sec) - self._cost_sec)

    def estimate_wait(self, late_sec: float, idle_sec: float, displaced: int) -> float:
        """Return for how long the job's thread stood still because a sample needed the lock.

        It does so until one of the two threads has a CPU, and where other processes displace it,
        until it has one again.

        Args:
            late_sec: How late the sampler came, less its request for the lock.
            idle_sec: How long the job's thread had no CPU since the last sample.
            displaced: How often threads of the job have lost their CPU to others so far.
        """
        was, self._displaced = self._displaced, displaced
        return min(idle_sec, late_sec + (_RETURN_SEC if displaced > was else 0.0))

    def next_wait(self) -> float:
        """Return the seconds until the next sample."""
        self._looks += 1
        if self._rate_hz is not None:
            period = max(1.0 / self._rate_hz, self._cost_sec / _OWN_SHARE_AT_GIVEN_RATE)
        else:
            age = read_monotonic() - self._began
            shortest, longest = next((a, b) for until, a, b in _PACE if age < until)
            period = max(shortest, min(longest, self._cost_sec / _OWN_SHARE), self._rest_sec)
        # Equal periods could always hit the same point of a job that works periodically.
        return period * (0.5 + self._looks * _GOLDEN % 1.0)
