"""Predicts how a job's run time changes with the number of nodes, from the counts it ran on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from mlflow_perf.errors import SettingError

Array = npt.NDArray[np.float64]

# Where no law meets the points, a ridge keeps its terms moderate. The cost of coordination is held
# back most. In units of squared relative error, for three points.
_RIDGE = np.array([1e-4, 0.0, 0.1])

_PRICE_OF_LEAVING_OUT = 2.0
"""A fit that leaves out a count must be closer by so many halved squared errors to be chosen."""

_ROUNDING = 1e-3
"""The share of a run time by which a curve may miss it and still count as exact."""

# The relative error that is assumed without points, and how many points that counts for.
_PRIOR_ERROR = 0.05
_PRIOR_POINTS = 3.0
_Z90 = 1.645


@dataclass(frozen=True)
class Scaling:
    """A run time as a function of the number of nodes: `a + b/w + c·n` on w working nodes of n.

    Attributes:
        a: Seconds that no node takes away: the serial part.
        b: Seconds of one node that are divided among all: the parallel part.
        c: Seconds that each further node adds: coordination.
        idle: Nodes that compute nothing, 0 or 1: a driver or a master has one for itself. So
            w is n − idle; one node alone does half of the work of two nodes.
        counts: The numbers of nodes that were measured, ascending.
        note: What a reader has to know about the fit; empty where there is nothing.
    """

    a: float
    b: float
    c: float
    idle: int
    counts: tuple[float, ...]
    note: str
    _crowded: tuple[tuple[float, float], ...]
    _error: float
    _covariance: tuple[tuple[float, ...], ...]

    def predict(self, nodes: float) -> float:
        """Return the seconds that the job takes on some number of nodes.

        Raises:
            SettingError: When the number is not above zero.
        """
        if not (math.isfinite(nodes) and nodes > 0):
            raise SettingError(f"The number of nodes must be above zero, not {nodes}.")
        working = _count_working(nodes, self.idle)
        for count, seconds in reversed(self._crowded):
            if nodes <= count:
                return seconds * _count_working(count, self.idle) / working
        return self.a + self.b / working + self.c * nodes

    def interval(self, nodes: float) -> tuple[float, float]:
        """Return the seconds between which the job ends in nine of ten cases.

        Raises:
            SettingError: When the number of nodes is not above zero.
        """
        middle = self.predict(nodes)
        gradient = np.array([1.0, 1.0 / _count_working(nodes, self.idle), nodes]) / middle
        spread = float(gradient @ np.array(self._covariance) @ gradient)
        factor = math.exp(min(_Z90 * self._error * math.sqrt(1.0 + spread), 50.0))
        return middle / factor, middle * factor

    def fastest(self, among: Iterable[int] | None = None) -> int:
        """Return the number of nodes with the shortest run time; of equal times the smallest.

        Args:
            among: Counts to choose from; by default from the smallest that was measured to twice
                the largest, because a fit says little about what lies further out.
        """
        return min(self._candidates(among), key=lambda n: (round(self.predict(n), 9), n))

    def cheapest(
        self, among: Iterable[int] | None = None, *, within_sec: float | None = None
    ) -> int:
        """Return the number of nodes with the fewest node-seconds; of equal costs the largest.

        Args:
            among: Counts to choose from; the default is that of `fastest`.
            within_sec: Longest run time that will do.

        Raises:
            SettingError: When no count ends in time.
        """
        counts = self._candidates(among)
        in_time = [n for n in counts if within_sec is None or self.predict(n) <= within_sec]
        if not in_time:
            best = self.predict(self.fastest(counts))
            raise SettingError(
                f"No count of nodes ends within {within_sec:g} s; the fastest takes {best:.4g} s."
            )
        return min(in_time, key=lambda n: (float(f"{n * self.predict(n):.9g}"), -n))

    def _candidates(self, among: Iterable[int] | None) -> list[int]:
        if among is None:
            return list(range(math.ceil(self.counts[0]), math.ceil(2 * self.counts[-1]) + 1))
        counts = sorted(set(among))
        if not counts:
            raise SettingError("Name at least one number of nodes to choose from.")
        return counts


def fit(points: Iterable[tuple[float, float]]) -> Scaling:
    """Fit a job's run times on several numbers of nodes.

    The coefficients minimise the squares of the relative errors, with no negative term. Where three
    counts or more lie on such a curve, within rounding or the noise of repeated runs, that curve is
    taken as it is. Otherwise all models with some of the three terms are tried, with all nodes at
    work or all but one, and the best one is taken, with a slight reserve against coordination. A
    count whose node-seconds exceed those of the next larger count is left out: no term explains
    that more nodes do the same work in fewer node-seconds, but memory that was too small does.

    Args:
        points: Pairs of a number of nodes and the seconds that a run took on them. A count may
            occur several times.

    Raises:
        SettingError: When there is no point, or one is not of two finite numbers above zero.
    """
    measured = sorted((float(n), float(seconds)) for n, seconds in points)
    if not measured:
        raise SettingError("A fit needs at least one pair of a number of nodes and its seconds.")
    for pair in measured:
        if not all(math.isfinite(value) and value > 0 for value in pair):
            raise SettingError(f"Nodes and seconds must be finite numbers above zero, not {pair}.")
    counts = tuple(sorted({n for n, _ in measured}))
    if len(counts) > 2:
        law = _fit_curve(measured, counts, 0, np.zeros(3))
        if not law.left_out and _explains(law.curve, measured):
            return law.curve
    # Two counts cannot tell a node that does not work from work that is not divided.
    may_idle = len(counts) > 2 and counts[0] >= 2
    found = [_fit_curve(measured, counts, idle, _RIDGE) for idle in ((0, 1) if may_idle else (0,))]
    noise = min(candidate.error for candidate in found)
    return min(found, key=lambda candidate: candidate.price(noise)).curve


@dataclass(frozen=True)
class _Candidate:
    squares: float
    error: float
    left_out: int
    curve: Scaling

    def price(self, noise: float) -> float:
        """Return how far the curve is from the points, at some relative error of a run."""
        return self.squares / (2 * noise**2) + _PRICE_OF_LEAVING_OUT * self.left_out


def _fit_curve(
    measured: Sequence[tuple[float, float]], counts: tuple[float, ...], idle: int, ridge: Array
) -> _Candidate:
    """Return the best curve with so many nodes that do not work."""
    # The smallest counts whose node-seconds exceed those of the next count.
    middles = [(n, float(np.median([sec for m, sec in measured if m == n]))) for n in counts]
    left_out = 0
    while len(counts) - left_out > 2:
        (n, seconds), (more, faster) = middles[left_out : left_out + 2]
        if (n - idle) * seconds <= 1.001 * (more - idle) * faster:
            break
        left_out += 1
    crowded = tuple(middles[:left_out])
    kept = [(n, seconds) for n, seconds in measured if n >= counts[len(crowded)]]
    squares, (a, b, c), error, covariance = _least_squares(kept, idle, ridge)
    note = ""
    if crowded:
        names = ", ".join(f"{n:g}" for n, _ in crowded)
        note = (
            f"Left out of the fit: {names} nodes. The next count did the same work in fewer "
            "node-seconds, which happens when memory is too small."
        )
    elif len(counts) < 3:
        note = f"Measured on {len(counts)} of the 3 counts of nodes that tell the terms apart."
    elif idle:
        note = "One of the nodes does not take part in the work, as a driver or a master."
    curve = Scaling(a, b, c, idle, counts, note, crowded, error, covariance)
    return _Candidate(squares, error, len(crowded), curve)


def _explains(curve: Scaling, points: Sequence[tuple[float, float]]) -> bool:
    """Return whether a curve meets each count's mean within rounding and the noise of its runs."""
    groups = [np.array([sec for m, sec in points if m == n]) for n in curve.counts]
    means = np.array([group.mean() for group in groups])
    runs = np.array([len(group) for group in groups])
    spare = len(points) - len(groups)
    squares = sum(float(((group / group.mean() - 1.0) ** 2).sum()) for group in groups)
    noise = math.sqrt(squares / spare) if spare else 0.0
    misses = np.array([curve.predict(n) for n in curve.counts]) / means - 1.0
    return bool((np.abs(misses) <= _ROUNDING + 2.0 * noise / np.sqrt(runs)).all())


def _count_working(nodes: float, idle: int) -> float:
    return max(nodes - idle, nodes / 2) if idle else nodes


def _least_squares(
    points: Sequence[tuple[float, float]], idle: int, ridge: Array
) -> tuple[float, tuple[float, float, float], float, tuple[tuple[float, ...], ...]]:
    """Return the squared errors, the terms, the relative error of a run, the terms' covariance."""
    nodes, seconds = (np.array(column) for column in zip(*points, strict=True))
    working = nodes - idle
    # In units of the middle count and its run time the terms are alike in size, and so the ridge.
    middle, workers, typical = (np.exp(np.log(v).mean()) for v in (nodes, working, seconds))
    shape = np.stack([np.ones_like(nodes), workers / working, nodes / middle], axis=1)
    ridge = ridge * min(1.0, (3.0 / len(points)) ** 2)
    rows = np.vstack([shape * (typical / seconds)[:, None], np.diag(np.sqrt(ridge))])
    aim = np.concatenate([np.ones_like(nodes), np.zeros(3)])
    best, least = np.zeros(3), math.inf
    for size in (1, 2, 3):
        for terms in combinations(range(3), size):
            found = np.linalg.lstsq(rows[:, terms], aim, rcond=None)[0]
            squares = float(((rows[:, terms] @ found - aim) ** 2).sum())
            if (found >= 0).all() and squares < least - 1e-12:
                least, best = squares, np.zeros(3)
                best[list(terms)] = found
    relative = rows[: len(points)] @ best - 1.0
    spare = max(len(points) - np.count_nonzero(best), 0)
    squares = _PRIOR_POINTS * _PRIOR_ERROR**2 + float((relative**2).sum())
    error = math.sqrt(squares / (_PRIOR_POINTS + spare))
    units = typical * np.array([1.0, workers, 1.0 / middle])
    covariance = np.linalg.pinv(rows.T @ rows) * np.outer(units, units)
    a, b, c = (float(value) for value in best * units)
    return least, (a, b, c), error, tuple(tuple(map(float, row)) for row in covariance)
