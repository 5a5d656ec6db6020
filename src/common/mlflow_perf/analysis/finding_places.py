"""Says where in a run, and in which function, the time of a finding went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlflow_perf.analysis.time_shares import Span
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.model.document import NodeDocument

__all__ = ["find_function", "name_phase"]

_COMPUTES = ("serial", "saturated", "contended", "oversubscribed", "balanced")
_IN_CODE = (*_COMPUTES, "waiting", "disk", "network", "idle", "gpu", "input")


def name_phase(
    kind: str, spans: Sequence[Span], shares: Sequence[Mapping[str, float]]
) -> str | None:
    """Return the one part of the run in which a kind took most of the time; None without one."""
    if kind not in shares[0] or len(spans) < 4:
        return None
    held = [i for i, share in enumerate(shares) if share[kind] >= 0.5]
    if not held:
        return None
    first, last = spans[held[0]], spans[held[-1]]
    begin, end = first.start_sec, last.start_sec + last.seconds
    inside = sum(spans[i].seconds for i in held)
    whole = spans[-1].start_sec + spans[-1].seconds
    if end - begin > 0.8 * whole or inside < 0.8 * (end - begin) or inside < 0.1 * whole:
        return None
    if begin <= 0.05 * whole:
        return f"the start to {format_duration(end)}"
    until = "the end" if end >= 0.95 * whole else format_duration(end)
    return f"{format_duration(begin)} to {until}"


def find_function(kind: str, document: NodeDocument) -> str | None:
    """Return the function that a profile in the document says took most time of the kind."""
    profile = document.extra.get("profile")
    rows = profile.get("functions") if isinstance(profile, dict) else None
    if kind not in _IN_CODE or not rows:
        return None
    computes = kind in _COMPUTES
    best, most = None, 5.0
    for row in rows:
        own, on_cpu = row.get("self_pct") or 0.0, (row.get("cpu_pct") or 0.0) / 100
        part = own * (on_cpu if computes else 1 - on_cpu)
        if part > most:
            best, most = str(row.get("function")), part
    return best
