"""Every kind that is found from figures has its sentence."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis.finding_texts import SENTENCES, Facts
from mlflow_perf.analysis.findings import KINDS, findings_of
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


@pytest.mark.parametrize(("switches", "is_in_turns"), [((0, 5, 19), False), ((0, 300, 320), True)])
def test_threads_take_turns_only_where_they_did_so_for_long(
    switches: tuple[float, ...], *, is_in_turns: bool
) -> None:
    """MLflow has two idle threads in every job, so a burst of switches at the end is ignored."""
    elapsed = (0.0, 1.0, 1.06)
    reports: dict[str, list[float | None]] = {
        "elapsed_sec": [*elapsed],
        "job_cpu_sec": [*elapsed],
        "job_threads": [3.0] * 3,
        "job_processes": [1.0] * 3,
        "job_ran_sec": [*elapsed],
        "job_run_delay_sec": [0.0] * 3,
        "job_voluntary_switches": [*map(float, switches)],
    }
    summary = {
        "duration_sec": 1.06,
        "cpu_limit_cores": 2.0,
        "job_cpu_avg_cores": 1.0,
        "job_threads_max": 3.0,
    }
    text = findings_of(NodeDocument(summary=summary, reports=reports))[0].sentence
    assert ("took turns" in text) is is_in_turns, text


@pytest.mark.parametrize(("cores", "said"), [(1.0, "0.2 of 1 CPU"), (2.0, "0.2 of 2 CPUs")])
def test_one_cpu_is_no_plural(cores: float, said: str) -> None:
    """The CPUs that a job used are of one CPU, or of several CPUs."""
    usage = Usage({"cpu_limit_cores": cores, "job_cpu_avg_cores": 0.2})
    assert Facts(usage, [], {}, MemoryTrend()).used == said
