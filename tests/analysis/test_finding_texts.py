"""Every kind that is found from figures has its sentence."""

from __future__ import annotations

from mlflow_perf.analysis.finding_texts import SENTENCES, Facts
from mlflow_perf.analysis.findings import KINDS
from mlflow_perf.analysis.memory_trend import MemoryTrend
from mlflow_perf.analysis.time_shares import read_spans
from mlflow_perf.analysis.usage import Usage
from mlflow_perf.model.document import NodeDocument


def test_every_kind_has_a_sentence_of_any_figures() -> None:
    """With no figure at all, each is still one line that says what to do; balance needs nothing.

    The kinds of loops' steps have their sentences elsewhere.
    """
    empty = NodeDocument()
    totals = dict.fromkeys(KINDS, 0.5)
    facts = Facts(Usage({}), read_spans(empty), totals, MemoryTrend(mb_per_min=1.0))
    assert set(SENTENCES) == set(KINDS) - {"input", "steps", "straggler", "too_short"}
    for kind, describe in SENTENCES.items():
        evidence, do = describe(facts)
        assert "\n" not in evidence + do
        assert evidence[0].isupper()
        assert bool(do) == (kind != "balanced")
