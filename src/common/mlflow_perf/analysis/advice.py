"""The verdict of one node: the first of its findings, as a word and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mlflow_perf.analysis.findings import BOTTLENECK_OF_KIND, findings_of
from mlflow_perf.model.document import NodeDocument

BOTTLENECKS = tuple(sorted({*BOTTLENECK_OF_KIND.values(), "throttled"}))
"""Every value that `Verdict.bottleneck` can have."""

_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Verdict:
    """What held a job back.

    Attributes:
        bottleneck: One of `BOTTLENECKS`.
        advice: One sentence: the evidence, and what to do about it.
    """

    bottleneck: str
    advice: str


def decide_verdict(summary: Mapping[str, float], node: Mapping[str, Any] = _NO_FACTS) -> Verdict:
    """Return what held the job on one node back, with the evidence, from its summary alone.

    `findings_of` takes the whole document, and so also knows what changed while the job ran.

    Args:
        summary: Metric key → value of the node; any key may be missing.
        node: Facts of the node, such as `cpu_count`.
    """
    first = findings_of(NodeDocument(node=dict(node), summary=dict(summary)))[0]
    return Verdict(first.bottleneck, first.sentence)
