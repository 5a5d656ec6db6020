"""Recommends the memory that each GPU needs, and says what the GPUs did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_perf.analysis.peak_usage import PeakUsage

_HEADROOM_PCT = 10
_MOST_MB = 1e15  # a damaged document's figure may be infinite


@dataclass(frozen=True)
class GpuAdvice:
    """What to ask of the GPUs, and why.

    Attributes:
        memory_mb: Memory of each GPU, in MB of 2^20 bytes; None where no run used a GPU, or none
            says how much of its memory, as in documents of earlier versions.
        evidence: The reasons, in sentences.
        is_told: Whether each run tells whether it had GPUs, or any tells that it had.
    """

    memory_mb: int | None
    evidence: tuple[str, ...] = ()
    is_told: bool = True


def advise_gpus(peaks: Sequence[PeakUsage]) -> GpuAdvice:
    """Return what each GPU needs, from the peak usage of all nodes of all runs."""
    owned = max(peak.owned_gpus for peak in peaks)
    if not owned:
        is_told = all(peak.gpus is not None for peak in peaks)
        unknown = "GPU: not every run says whether it had GPUs: there is no advice on them."
        return GpuAdvice(None, () if is_told else (unknown,), is_told)
    worst = max(peaks, key=lambda peak: peak.gpus or 0)
    if worst.usage.knows_gpu_use:
        busy = max(peak.usage["gpu_avg_utilization_pct"] for peak in peaks)
        did = f"GPU: {worst.gpus} of {owned} per node computed or held memory"
        did += f", {busy:.0f}% busy on average ({worst.where})."
    else:
        did = f"GPU: the {worst.gpus} per node of {worst.where} are asked for again"
        did += ": nothing says whether they were used."
    if not worst.gpus:
        return GpuAdvice(None, (did,))
    fullest = max(peaks, key=lambda peak: peak.gpu_memory_mb)
    if not (used := fullest.gpu_memory_mb):
        missing = "GPU: no run says how much of a GPU's memory it used: there is no advice on it."
        return GpuAdvice(None, (did, missing))
    spare = f"{_HEADROOM_PCT}% head-room added"
    held = f"GPU: the job held at most {used:,.0f} MB of one GPU ({fullest.where}); {spare}."
    return GpuAdvice(math.ceil(min(used * (100 + _HEADROOM_PCT) / 100, _MOST_MB)), (did, held))
