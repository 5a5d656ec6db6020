"""The resources that all runs of a store held and left unused, by group, with recommendations."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.core.format import duration, format_count, format_for_people
from mlflow_perf.errors import MlflowPerfError, RunNotFoundError, SettingError
from mlflow_perf.tracking.fleet_store import sum_runs
from mlflow_perf.tracking.fleet_sums import FIGURES, GROUPS, MONDAY_MS, WEEK_MS, Sums
from mlflow_perf.tracking.load import list_experiments, make_client
from mlflow_perf.tracking.notices import tell
from mlflow_perf.tracking.perf_run import TAG, PerfRun
from mlflow_perf.tracking.search import find_runs

NO_GROUP = "(none)"
_WEEK_SEC = 7 * 86_400.0
_WORSE_PCT = 10.0
_ADVISED = 3
RUNS_OF_EACH = 10
"""How many of a component's newest runs its advice is made from: `advise --last 10` says the same,
and from ten runs on little head-room is needed."""

_DEFAULT_BY = "experiment"


@dataclass(frozen=True)
class FleetRow:
    """One group.

    Attributes:
        group: Its name.
        runs: How many runs with performance data, and workflows that failed though no step did.
        failed: How many of them failed or were killed.
        figures: Hours and costs by name, see `FIGURES`; None where no run has it.
    """

    group: str
    runs: int
    failed: int
    figures: Mapping[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {"group": self.group, "runs": self.runs, "failed": self.failed, **self.figures}


@dataclass(frozen=True)
class Digest:
    """What a weekly message says.

    Attributes:
        title: The time that it is about.
        by: What the rows are groups of.
        rows: The groups of that time, most unused first.
        worse: The groups that left more unused, or failed more, than before it; sentences.
        advice: What would change it, for the components that left most unused; sentences.
    """

    title: str
    by: str
    rows: Sequence[FleetRow]
    worse: Sequence[str]
    advice: Sequence[str]


def sum_fleet(
    by: str = _DEFAULT_BY, *, since: float | None = None, until: float | None = None
) -> list[FleetRow]:
    """Return the hours and costs that runs held and left unused, most unused CPU hours first.

    Args:
        by: `experiment`, `user`, `component`, `workflow` or `week`.
        since: Only runs that started then or later, Unix time in seconds.
        until: Only runs that started before.

    Raises:
        RunNotFoundError: When the store does not answer.
        SettingError: When `by` is another word.
    """
    if by not in GROUPS:
        raise SettingError(f"Runs are summed up by {', '.join(GROUPS)}, not by {by!r}.")
    bounds = [None if bound is None else int(1000 * bound) for bound in (since, until)]
    names: dict[Any, str] = {}
    if by == "experiment":
        names = {int(key): name for key, name in list_experiments(make_client()).items()}
    return build_rows(by, sum_runs(by, *bounds), names)


def build_rows(by: str, groups: Iterable[Sums], experiments: Mapping[int, str]) -> list[FleetRow]:
    """Return groups by their names, most unused CPU hours first.

    Args:
        by: As in `sum_fleet`.
        groups: The sums of each.
        experiments: Id of an experiment → its name.
    """

    def name(sums: Sums) -> str:
        if sums.group is None or sums.group == "":
            return NO_GROUP
        if by == "week":
            monday = datetime.fromtimestamp(
                (int(sums.group) * WEEK_MS + MONDAY_MS) / 1000, tz=timezone.utc
            )
            return monday.strftime("%G-W%V")
        return experiments.get(sums.group, str(sums.group))

    rows = [FleetRow(name(sums), sums.runs, sums.failed, sums.figures) for sums in groups]
    order = ("unused_cpu_hours", "unused_gpu_hours", "unused_cost")
    rows.sort(key=lambda row: (*(-(row.figures[key] or 0.0) for key in order), row.group))
    return rows


def add_rows(rows: Sequence[FleetRow]) -> FleetRow:
    """Return the sum of all rows; a figure that none has stays None."""
    figures: dict[str, float | None] = {}
    for key in FIGURES:
        known = [value for row in rows if (value := row.figures[key]) is not None]
        figures[key] = sum(known) if known else None
    return FleetRow("all", sum(r.runs for r in rows), sum(r.failed for r in rows), figures)


def build_digest(by: str = _DEFAULT_BY, age_sec: float | None = None) -> Digest:
    """Return the digest of a time up to now, compared with the same time before.

    Args:
        by: As in `sum_fleet`.
        age_sec: Length of the time in seconds; default: seven days.

    Raises:
        RunNotFoundError: When the store does not answer.
    """
    now, span_sec = time.time(), age_sec or _WEEK_SEC
    rows = sum_fleet(by, since=now - span_sec, until=now)
    before = sum_fleet(by, since=now - 2 * span_sec, until=now - span_sec)
    worse = find_worse(rows, before) if by != "week" else []
    components = sum_fleet("component", since=now - span_sec, until=now)
    wasting = [row for row in components if row.figures["unused_cpu_hours"]][:_ADVISED]
    advice = []
    for row in wasting:
        try:
            runs = find_runs(row.group, max_results=RUNS_OF_EACH, documents=True)
        except RunNotFoundError as error:  # the artifacts of all of them are out of reach here
            tell.get()(f"{row.group} gets no advice: {error}")
            runs = []
        advice.append(advise_component(row, runs))
    hours = span_sec / 3600.0
    length = format_count(hours / 24, "day") if hours >= 48 else duration(span_sec)
    length = "seven days" if span_sec == _WEEK_SEC else length
    return Digest(f"The last {length}", by, rows, worse, advice)


def find_worse(rows: Iterable[FleetRow], before: Iterable[FleetRow]) -> list[str]:
    """Return the groups that left more unused, or failed more, than before; sentences."""
    past_of = {row.group: row for row in before}
    worse = []
    for row in rows:
        past = past_of.get(row.group)
        if past is None:
            continue
        old, new = (r.figures["unused_cpu_hours"] or 0.0 for r in (past, row))
        if new > old * (1 + _WORSE_PCT / 100) and new - old >= 0.1:
            worse.append(f"{row.group}: {old:,.1f} → {new:,.1f} CPU h that nobody used.")
        if row.failed * past.runs > past.failed * row.runs and row.failed > past.failed:
            worse.append(
                f"{row.group}: {past.failed} of {past.runs} → {row.failed} of {row.runs} "
                "runs failed."
            )
    return worse


def advise_component(row: FleetRow, runs: Sequence[PerfRun]) -> str:
    """Return the bottleneck of a component's newest runs, and the recommended request.

    Args:
        row: The component's sums.
        runs: Its newest runs, with their documents: without them the request is a lower bound.
    """
    unused = row.figures["unused_cpu_hours"] or 0.0
    (idle,) = format_for_people([unused], "CPU h", cpu_hours=[row.figures["cpu_hours"] or 0.0])
    text = f"{row.group} held {idle} that nobody used"
    words = Counter(run.verdict for run in runs if run.verdict)
    word, count = words.most_common(1)[0] if words else ("", 0)
    if word:
        newest = "its newest run" if len(runs) == 1 else f"{count} of its newest {len(runs)} runs"
        text += f"; verdict on {newest}: {word}"
    said = (run.tags.get(f"{TAG}advice", "") for run in runs if run.verdict == word)
    advice = next(filter(None, said), "")
    try:
        size = right_size(runs)
    except MlflowPerfError:  # no figures of nodes: the verdict alone is said
        return f"{text}. {advice}".strip()
    asks = [f"{size.cpus:g} CPU{'s' * (size.cpus != 1)}" if size.cpus else ""]
    asks.append(f"{size.memory_mb:,} MB" if size.memory_mb else "")
    had = size.had.get("cpus")
    of = f" instead of {had:g} CPUs" if had and size.cpus and had > size.cpus else ""
    wanted = " and ".join(filter(None, asks))
    least = "at least " if size.is_lower_bound else ""
    asked = f" Ask for {least}{wanted}{of}." if wanted else ""
    return f"{text}.{asked} {advice}".strip()
