"""Divides a job's time by activity: computing, or waiting for a CPU, a disk, memory or the unknown.

Each span of time is split without thresholds: 0.6 busy CPUs are 60% of the time on one CPU, 1.5 are
half on one and half on two. The parts of a span add up to its length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from mlflow_perf.analysis.span import Span
from mlflow_perf.analysis.taking_turns import average_switches, find_several, find_turns
from mlflow_perf.analysis.usage import (
    BEYOND_REASON,
    Usage,
    is_held_by_affinity,
    is_held_by_quota,
    ramp,
)
from mlflow_perf.model.columns import BUSY_CORES
from mlflow_perf.model.document import NodeDocument

_MOST_SPANS = 100
_HARDLY_PCT = 5.0  # of the computing; the shell around a program does less
_DELAY_KNOWN = 0.5  # of an interval's CPU time, the least whose threads' waits are known
_LEAST_CORES = 0.001  # less is no share of a CPU: a foreign document's mistake
_RATES = {
    "job_cpu_sec": "used",
    "job_system_sec": "system",
    "job_calls_mb": "calls_mb_s",
    "cpu_stall_sec": "cpu_stall",
    "io_stall_sec": "io_stall",
    "mem_stall_sec": "mem_stall",
    "cpu_throttled_sec": "throttled",
}
"""Counter columns whose rate per second, where it is known, is a figure of a span."""

_USED = {
    *_RATES, "elapsed_sec", "cpu_busy_sec", "cpu_iowait_sec", "cpu_limit_cores",
    "disk_io_read_mb", "disk_io_write_mb", "gpu_others_utilization_pct", "gpu_utilization_pct",
    "job_affinity_cpus", "job_io_read_mb", "job_io_write_mb", "job_processes",
    "job_quota_cores", "job_ran_apart_sec", "job_ran_beside_sec", "job_ran_sec", "job_read_calls",
    "job_run_delay_sec", "job_threads", "job_voluntary_switches",
    "job_write_calls", "net_io_ext_recv_mb", "net_io_ext_sent_mb",
}  # fmt: skip
"""The columns that spans are made of."""

_OF_THE_RUN = ("peak_used", "stolen", "most_busy", "has_gpu", "mean_gpu", "mem_pct", "own_mem")
"""Figures of a span that are those of the whole run."""

_STALL_BOOST = 4.0
"""The kernel weighs stalls by CPU: beside busy CPUs, a job that only waits for a disk is seen to
stall for half of the time on two CPUs, and on a full machine for a fifth."""


def read_spans(document: NodeDocument) -> list[Span]:
    """Return a node's time as spans, from its reports; one span from the summary without reports.

    At most a hundred spans are made, so that the cost does not grow with the job's length.
    """
    usage = Usage(document.summary, document.node)
    whole = _read_whole(usage)
    spans = list(_make_report_spans(document, usage, whole)) if whole.own else []
    return _limit_waits(spans or [whole], usage)


def summarise_time(usage: Usage) -> Span:
    """Return the whole time of a node as one span, from its summary alone."""
    return _limit_waits([_read_whole(usage)], usage)[0]


def _limit_waits(spans: list[Span], usage: Usage) -> list[Span]:
    """Let the job wait for disks no longer than the looks at its threads leave possible.

    The looks are a sample: the share of the time may be larger than that of the looks which found
    a blocked thread, by about two standard deviations.
    """
    looks = usage["job_looks"]
    if not looks:
        return spans
    blocked = usage["job_blocked_pct"] / 100.0 * looks
    most = min(1.0, (blocked + 3.0 + 2.0 * math.sqrt(blocked)) / looks)
    looked = [span for span in spans if span.used < BUSY_CORES] or spans
    most_sec = most * sum(span.seconds for span in looked)
    shares = [split_time(replace(span, calls_per_sec=0.0)) for span in spans]  # the waits alone
    waits_sec = average_shares(spans, shares)["disk"] * sum(span.seconds for span in spans)
    part = min(1.0, most_sec / waits_sec) if waits_sec else 1.0
    return [replace(span, blocked=part) for span in spans]


def _read_whole(usage: Usage) -> Span:
    seconds = usage["duration_sec"]
    cores = usage.cores or 1.0  # those of `node_busy_pct`
    used = usage.used_cores if usage.cores else usage.node_busy_pct / 100.0
    calls = usage["job_read_calls"] + usage["job_write_calls"]
    apart = None
    if "job_ran_apart_pct" in usage:
        apart = usage["job_ran_apart_pct"]
    keys = ("job_io_read_mb", "job_io_write_mb")
    if not usage.knows_own_io:
        keys = ("total_disk_io_read_mb", "total_disk_io_write_mb")
    return Span(
        start_sec=0.0,
        seconds=seconds,
        cores=usage.allowed_cores or 1.0,
        used=used,
        node_used=max(used, usage.node_busy_pct / 100.0 * cores) + usage.hidden_cores,
        own="job_cpu_avg_cores" in usage,
        run_delay=usage["job_run_delay_pct"] / 100.0 if "job_run_delay_pct" in usage else None,
        peak_used=max(used, usage["job_max_cpu_cores"]),
        processes=usage["job_processes_avg"],
        cpu_stall=usage["cpu_stall_pct"] / 100.0,
        io_stall=max(usage["io_stall_pct"], usage["iowait_pct"] * max(cores, 1)) / 100.0,
        mem_stall=usage["mem_stall_pct"] / 100.0,
        throttled=usage["cpu_throttled_pct"] / 100.0,
        stolen=usage.stolen_pct / 100.0,
        most_busy=_count_busy(usage),
        disk_mb_s=sum(usage[key] for key in keys) / seconds if seconds > 0 else 0.0,
        calls_per_sec=calls / seconds if seconds > 0 else 0.0,
        calls_mb_s=usage["job_calls_mb"] / max(seconds, 1e-9) if "job_calls_mb" in usage else None,
        system=usage["job_system_pct"] / 100.0 * used if "job_system_pct" in usage else None,
        takes_turns=find_turns(
            used,
            usage["job_threads_max"],
            average_switches(usage),
            usage["job_ran_beside_pct"] / 100.0 if "job_ran_beside_pct" in usage else 1.0,
            find_several(apart, of=100.0, processes=usage["job_processes_avg"]),
        ),
        own_io=usage.knows_own_io,
        net_mb_s=usage.net_mb_s,
        gpu=usage["gpu_avg_utilization_pct"] / 100.0,
        mean_gpu=usage["gpu_avg_utilization_pct"] / 100.0,
        gpu_others=usage["gpu_others_avg_utilization_pct"] / 100.0,
        has_gpu="gpu_avg_utilization_pct" in usage,
        mem_pct=usage.mem_pct,
        own_mem=usage.knows_own_memory,
        at_own_quota=usage.own_quota > 0,
    )


def _count_busy(usage: Usage) -> float:
    """Return how many CPUs threads of the job can have kept busy together, over the whole block."""
    others = ("job_ran_beside_pct", "job_ran_apart_pct")
    if all(key in usage and usage[key] < _HARDLY_PCT for key in others):
        return 1.0
    return usage["job_threads_max"] or math.inf


def _make_report_spans(document: NodeDocument, usage: Usage, whole: Span) -> Iterator[Span]:
    length = len(next(iter(document.reports.values()), []))
    picked = {*range(0, length, max(1, -(-length // _MOST_SPANS))), length - 1} if length else ()
    columns = [(name, column) for name, column in document.reports.items() if name in _USED]
    rows = [
        {
            name: value
            for name, column in columns
            if (value := column[i]) is not None and abs(value) < BEYOND_REASON
        }
        for i in sorted(picked)
    ]
    for before, row in pairwise(rows):
        gained = {name: value - before.get(name, 0.0) for name, value in row.items()}
        seconds = gained.get("elapsed_sec", 0.0)
        if seconds <= 0 or "job_cpu_sec" not in row:
            continue
        rate = partial(_calculate_rate, gained, seconds)
        figures: dict[str, Any] = {name: getattr(whole, name) for name in _OF_THE_RUN}
        figures |= {field: rate(name) for name, field in _RATES.items() if name in row}
        io_names = ("disk_io_read_mb", "disk_io_write_mb")
        if usage.knows_own_io:
            io_names = ("job_io_read_mb", "job_io_write_mb")
        moved_mb = sum(row.get(name, math.inf) for name in io_names)
        waits, runs = rate("job_run_delay_sec"), rate("job_ran_sec")
        # The CPU time of processes that ended meanwhile is known, and not how long they waited.
        knows_delay = waits + runs > 0 and runs >= _DELAY_KNOWN * figures["used"]
        apart = rate("job_ran_apart_sec") if "job_ran_apart_sec" in row and runs else None
        figures["io_stall"] = max(figures.get("io_stall", 0.0), rate("cpu_iowait_sec"))
        cores = whole.cores if (n := row.get("cpu_limit_cores") or 0.0) < _LEAST_CORES else n
        affinity, quota = row.get("job_affinity_cpus", 0.0), row.get("job_quota_cores", 0.0)
        is_pinned = is_held_by_affinity(figures["used"], affinity, cores)
        at_quota = is_held_by_quota(figures["used"], quota, cores)
        # Those of a command are counted when it has ended.
        knows_switches = "job_voluntary_switches" in before.keys() & row.keys()
        yield Span(
            start_sec=before.get("elapsed_sec", 0.0),
            seconds=seconds,
            cores=min(cores, affinity if is_pinned else cores, quota if at_quota else cores),
            node_used=max(figures["used"], rate("cpu_busy_sec")) + usage.hidden_cores,
            own=True,
            run_delay=waits / (waits + runs) if knows_delay else whole.run_delay,
            calls_per_sec=rate("job_read_calls", "job_write_calls"),
            takes_turns=find_turns(
                figures["used"],
                row.get("job_threads", 0.0),
                rate("job_voluntary_switches") if knows_switches else average_switches(usage),
                rate("job_ran_beside_sec") / runs if "job_ran_beside_sec" in row and runs else 1.0,
                find_several(apart, of=runs, processes=row.get("job_processes", 1.0)),
            ),
            processes=row.get("job_processes", 0.0),
            disk_mb_s=rate(*io_names),
            mean_disk_mb_s=min(whole.disk_mb_s, moved_mb / (whole.seconds or math.inf)),
            own_io=usage.knows_own_io,
            net_mb_s=rate("net_io_ext_sent_mb", "net_io_ext_recv_mb"),
            gpu=row.get("gpu_utilization_pct", 0.0) / 100.0,
            gpu_others=row.get("gpu_others_utilization_pct", 0.0) / 100.0,
            at_own_quota=at_quota,
            **figures,
        )


def _calculate_rate(gained: Mapping[str, float], seconds: float, *names: str) -> float:
    return max(0.0, sum(gained.get(name, 0.0) for name in names)) / seconds


def average_demand(spans: Sequence[Span]) -> float:
    """Return the mean demand for CPUs, over the time in which there was any."""
    busy = [span for span in spans if span.demand >= 0.5] or list(spans)
    seconds = sum(span.seconds for span in busy)
    if seconds <= 0:
        return busy[0].demand
    return sum(span.demand * span.seconds for span in busy) / seconds


def divide_activity(span: Span) -> tuple[float, float, float]:
    """Return of a span's time the shares of computing, waiting for CPUs, and waiting for its quota.

    A job that got half of the CPUs that it could have used waited for half of that time.
    """
    wanted = min(span.demand, span.cores)
    lost = max(0.0, 1.0 - span.used / wanted) if wanted > 0 else 0.0
    active = min(1.0, span.demand / min(1.0, span.cores))
    throttled = min(active, span.throttled)
    starved = (active - throttled) * lost
    return active - throttled - starved, starved, throttled


def split_time(span: Span) -> dict[str, float]:
    """Return kind of finding → its share of a span's time; the shares add up to 1.

    `contended_gpu` is the part of `contended` in which others kept the job from its GPUs.
    """
    cores, demand = span.cores, span.demand
    wanted = min(demand, cores)
    computing, starved, throttled = divide_activity(span)
    active = computing + starved + throttled
    several = ramp(wanted, 1.0, 2.0) if cores >= 1.5 else 1.0
    # The CPUs hold idle GPUs back even where some of them are free.
    low, high = (0.4, 0.7) if span.has_gpu and span.gpu + span.gpu_others < 0.4 else (0.6, 0.85)
    full = computing * several * (ramp(wanted / cores, low, high) if cores >= 1.5 else 1.0)
    # A job that its quota holds back now and then is at its quota all the time.
    quota = throttled + full * max(ramp(throttled, 0.03, 0.12), span.at_own_quota)
    full -= quota - throttled
    # Beside others who have the CPUs, few threads wait as long as many.
    own = ramp(span.used / max(span.node_used, 1e-9), 0.25, 0.5)
    crowded = ramp(demand / max(cores, 1.0), 1.2, 2.0) * (1.0 - throttled) * own
    rest = max(0.0, 1.0 - active)
    moves = ramp(max(span.disk_mb_s, span.mean_disk_mb_s), 0.05, 0.5)
    boost = 1.0 + _STALL_BOOST * ramp(span.node_used / cores, 0.5, 1.0) * moves
    disk = (moves if span.own_io else 0.9) * span.blocked * min(rest, span.io_stall * boost)
    # Stalls are the node's: those of a job with little memory are probably another's.
    memory = span.mem_stall * (ramp(span.mem_pct, 20, 60) if span.own_mem else 0.9)
    free = max(0.0, rest - disk - memory)
    # A node moves data for others too: the job's own part of it costs CPU time.
    is_likely = ramp(span.net_mb_s, 5, 30) * ramp(span.used, 0.02, 0.08)
    network = free * is_likely
    files = span.small_requests
    shares = {
        "serial": computing * (1.0 - several) * (1.0 - files),
        "saturated": full * (1.0 - crowded),
        "balanced": computing * several - full - (quota - throttled),
        "contended": starved * (1.0 - crowded) + quota,
        "oversubscribed": (full + starved) * crowded,
        "disk": disk + computing * (1.0 - several) * files,
        "network": network,
        "waiting": free - network,
    }
    shares["contended_gpu"] = 0.0
    # A job that waits for its kernels sleeps, or spins on one CPU.
    full_gpu = ramp(span.gpu + span.gpu_others, 0.5, 0.9) * ramp(span.mean_gpu, 0.01, 0.05)
    for kind in ("serial", "waiting"):
        kept = shares[kind] * ramp(span.gpu_others, 0.0, 1.0) * full_gpu
        shares[kind] -= kept
        shares["contended_gpu"] += kept
    # While the GPUs work, the CPUs only feed them; while memory is short, nothing advances.
    left = (1.0 - span.gpu) * (1.0 - memory)
    shares = {kind: share * left for kind, share in shares.items()}
    return {**shares, "gpu": span.gpu, "memory": memory}


def average_shares(
    spans: Sequence[Span], shares: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return the shares of the whole time from those of its spans."""
    seconds = sum(span.seconds for span in spans)
    if seconds <= 0:
        return dict(shares[0])
    return {
        kind: sum(share[kind] * s.seconds for share, s in zip(shares, spans, strict=True)) / seconds
        for kind in shares[0]
    }
