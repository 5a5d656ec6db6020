"""Every kind that is found from figures has its sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlflow_perf.analysis.finding_texts import (
    SENTENCES,
    Facts,
    describe_balanced,
    describe_saturated,
    describe_serial,
    describe_waiting,
)
from mlflow_perf.analysis.findings import KINDS, findings_of
from mlflow_perf.analysis.memory_trend import MemoryTrend
from mlflow_perf.analysis.time_shares import read_spans, summarise_time
from mlflow_perf.analysis.usage import Usage
from mlflow_perf.model.document import NodeDocument


def test_every_kind_has_a_sentence_of_any_figures() -> None:
    """With no figure at all, each is still one line that says what to do; balance needs nothing.

    The kinds of loops' steps have their sentences elsewhere.
    """
    empty = NodeDocument()
    totals = dict.fromkeys(KINDS, 0.5)
    facts = Facts(Usage({}), read_spans(empty), totals, MemoryTrend(mb_per_min=1.0))
    kinds = {*KINDS, "contended_gpu"}
    assert set(SENTENCES) == kinds - {"input", "steps", "straggler", "too_short"}
    for kind, describe in SENTENCES.items():
        evidence, do = describe(facts)
        assert "\n" not in evidence + do
        assert evidence[0].isupper()
        assert bool(do) == (kind != "balanced")


def _waiting_facts(seconds: list[float], used: list[float]) -> Facts:
    spans = [
        replace(span, start_sec=sum(seconds[:i]), seconds=seconds[i], used=used[i])
        for span in read_spans(NodeDocument())
        for i in range(len(seconds))
    ]
    return Facts(Usage({}), spans, {"waiting": 0.8}, MemoryTrend())


def test_a_job_that_was_stopped_with_its_sampler_is_told_so() -> None:
    """One long time without a sample, in which nothing was computed, is most of the waiting."""
    evidence, do = describe_waiting(_waiting_facts([1.0, 1.0, 20.4, 1.0], [1.0, 0.9, 0.0, 0.01]))
    assert evidence.endswith("; from 2 s to 22.4 s not even mlflow-perf ran")
    assert do.startswith("find what stopped it: SIGSTOP")


@pytest.mark.parametrize(
    ("seconds", "used"),
    [
        ([1.0, 1.0, 20.4, 1.0], [1.0, 0.9, 1.0, 0.01]),  # beside Python's lock
        ([1.0, 1.0, 4.0, 1.0], [0.0] * 4),  # late
        ([1.0] * 30 + [6.0], [0.0] * 31),  # less than half of the waiting
        ([60.0], [0.0]),  # a summary alone
    ],
)
def test_a_late_sample_is_no_stop(seconds: list[float], used: list[float]) -> None:
    """A sampler may be late, or wait for a job that computes."""
    evidence, do = describe_waiting(_waiting_facts(seconds, used))
    assert "mlflow-perf" not in evidence
    assert do.startswith("find what it waits for")


@pytest.mark.parametrize(
    ("switches", "beside_sec", "is_in_turns"),
    [
        ((0, 5, 19), 0.6, False),
        ((0, 300, 320), 0.6, True),
        ((0, 300, 320), 0.01, False),
        ((None, None, 320), 0.6, True),
        ((None, None, 30), 0.6, False),
    ],
)
def test_threads_take_turns_only_where_they_did_so_for_long(
    switches: tuple[float | None, ...], beside_sec: float, *, is_in_turns: bool
) -> None:
    """A burst of switches at the end is ignored, and so are the short pauses of one busy thread.

    Of a command they are known at its end alone. MLflow has two idle threads in every job.
    """
    elapsed = (0.0, 1.0, 1.06)
    reports: dict[str, list[float | None]] = {
        "elapsed_sec": [*elapsed],
        "job_cpu_sec": [*elapsed],
        "job_threads": [3.0] * 3,
        "job_processes": [1.0] * 3,
        "job_ran_sec": [*elapsed],
        "job_run_delay_sec": [0.0] * 3,
        "job_ran_beside_sec": [0.0, beside_sec, beside_sec],
        "job_voluntary_switches": [*switches],
    }
    summary = {
        "job_voluntary_switches": switches[-1] or 0.0,
        "duration_sec": 1.06,
        "cpu_limit_cores": 2.0,
        "job_cpu_avg_cores": 1.0,
        "job_threads_max": 3.0,
    }
    text = findings_of(NodeDocument(summary=summary, reports=reports))[0].sentence
    assert ("took turns" in text) is is_in_turns, text
    assert "or as all threads" not in text


def test_a_full_node_may_be_why_threads_take_turns() -> None:
    """Beside others who keep the CPUs busy, threads without Python's lock share one CPU as well."""
    usage = Usage({"job_threads_max": 4.0, "cpu_limit_cores": 2.0, "job_cpu_avg_cores": 1.0,
                   "cpu_avg_utilization_pct": 99.0})  # fmt: skip
    span = replace(read_spans(NodeDocument())[0], seconds=1.0, used=1.0, takes_turns=1.0)
    text, do = describe_serial(Facts(usage, [span], {}, MemoryTrend()))
    assert "as Python's threads do under its lock (GIL), or as all threads do where others" in text
    assert "if it is the lock" in do


def test_nothing_is_said_of_peaks_that_a_record_does_not_tell() -> None:
    """Nextflow's trace has the mean of the CPUs, and no limit of the memory if none was asked."""
    usage = Usage({"cpu_limit_cores": 2.0, "job_cpu_avg_cores": 1.5, "job_max_mem_mb": 1536.0})
    facts = Facts(usage, [], {}, MemoryTrend())
    assert describe_serial(facts)[0] == "The job used 1.5 of 2 CPUs on average"
    assert "memory" not in describe_balanced(facts)[0]


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        # Two children that a full node starves.
        (
            {"job_processes_avg": 3.0},
            "The CPUs were 100% busy, 26% with the job (0.5 of 2 CPUs): less work per item would",
        ),
        ({"job_processes_avg": 3.0}, "would make it faster, more cores may."),
        # Threads under Python's lock.
        ({"job_processes_avg": 1.0}, "would make it faster, more cores cannot."),
        (
            {"job_processes_avg": 1.0, "cpu_limit_cores": 1.0, "cpu_avg_utilization_pct": 54.0},
            "54% busy (0.5 of 1 CPU): less work per item would make it faster, more cores may.",
        ),
    ],
)
def test_full_cpus_are_told_from_the_jobs_share_of_them(
    figures: dict[str, float], said: str
) -> None:
    """The share is named as the job's, and nothing is promised of cores that it cannot use."""
    summary = {"duration_sec": 60.0, "cpu_limit_cores": 2.0, "cpu_avg_utilization_pct": 100.0,
               "job_cpu_avg_cores": 0.53, "job_max_cpu_cores": 0.8, "job_run_delay_pct": 75.0,
               "job_threads_max": 4.0, "job_voluntary_switches": 60_000.0, **figures}  # fmt: skip
    usage = Usage(summary)
    evidence, do = describe_saturated(Facts(usage, [], {}, MemoryTrend()))
    assert said in f"{evidence}: {do}."


@pytest.mark.parametrize(("cores", "said"), [(1.0, "0.2 of 1 CPU"), (2.0, "0.2 of 2 CPUs")])
def test_one_cpu_is_no_plural(cores: float, said: str) -> None:
    """The CPUs that a job used are of one CPU, or of several CPUs."""
    usage = Usage({"cpu_limit_cores": cores, "job_cpu_avg_cores": 0.2})
    assert Facts(usage, [], {}, MemoryTrend()).used == said


_PINNED = {
    "duration_sec": 60.0, "cpu_limit_cores": 2.0, "job_cpu_avg_cores": 1.0,
    "job_max_cpu_cores": 1.0, "job_run_delay_pct": 50.0, "cpu_avg_utilization_pct": 50.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "word", "said"),
    [
        (
            {"job_affinity_cpus": 1.0},
            "cpu",
            "The job had 2 threads to run on 1 of 2 CPUs, which its own affinity allows (1 used)",
        ),
        (
            {"job_quota_cores": 1.0},
            "throttled",
            "The quota of a control group that the job itself joined, 1 of 2 CPUs, held it back",
        ),
        ({}, "cpu", "and CPUs were idle: its own affinity or quota may hold its threads"),
    ],
)
def test_others_that_used_nothing_are_not_blamed(
    figures: dict[str, float], word: str, said: str
) -> None:
    """Threads that wait beside idle CPUs are held by the job's own limits, known or not."""
    found = findings_of(NodeDocument(summary={**_PINNED, **figures}))[0]
    assert found.word == word
    assert said in found.sentence
    assert "others use this node" not in found.sentence


def test_others_on_the_one_cpu_that_the_job_chose_are_named_beside_its_choice() -> None:
    """Both hold it back: its affinity, and those who share that CPU."""
    usage = Usage({**_PINNED, "job_cpu_avg_cores": 0.5, "job_affinity_cpus": 1.0})
    evidence, do = SENTENCES["contended"](Facts(usage, [], {"contended": 0.5}, MemoryTrend()))
    assert "others 0.5; its own affinity allows 1 of 2 CPUs" in evidence
    assert do.startswith("let it use more")


@pytest.mark.parametrize(
    ("figures", "do"),
    [
        ({"job_affinity_cpus": 1.2}, "start 1 at a time, or "),
        ({"cpu_limit_cores": 1.6}, "start 2 at a time"),
        ({"cpu_limit_cores": 0.3}, "start 1 at a time"),
    ],
)
def test_threads_to_start_are_a_whole_number(figures: dict[str, float], do: str) -> None:
    """A mean of the affinity, or a quota, is no number of threads."""
    facts = Facts(
        Usage({**_PINNED, **figures}), [summarise_time(Usage(_PINNED))], {}, MemoryTrend()
    )
    assert SENTENCES["oversubscribed"](facts)[1].startswith(do)


def test_others_that_used_what_the_job_missed_are_blamed() -> None:
    """A job that gets 1 of 2 CPUs while others keep the other one busy needs CPUs of its own."""
    found = findings_of(NodeDocument(summary={**_PINNED, "cpu_avg_utilization_pct": 100.0}))
    assert any("others use this node" in finding.sentence for finding in found)


def test_others_on_a_full_node_are_named_to_a_job_with_a_quota() -> None:
    """Its own quota hides them in how busy its CPUs were."""
    of_quota = {"cpu_limit_cores": 0.5, "cpu_avg_utilization_pct": 62.0, "job_cpu_avg_cores": 0.31}
    of_node = {
        "cpu_throttled_pct": 0.0,
        "job_run_delay_pct": 70.0,
        "others_cpu_avg_cores": 1.69,
        "idle_cpu_avg_cores": 0.0,
    }
    summary = {**_PINNED, **of_quota, **of_node, "duration_sec": 5.0}
    usage = Usage(summary)
    said, do = SENTENCES["contended"](Facts(usage, [], {"contended": 0.5}, MemoryTrend()))
    assert "it got 0.3 of 0.5 CPUs, others 1.7" in said
    assert do == "others use this node, ask for CPUs of its own"
    idle = Usage({**summary, "idle_cpu_avg_cores": 30.0})
    assert idle.others_cores == 0.0
    # Threads that share the one CPU of a cpuset have nothing of the others on the node.
    alone = {name: value for name, value in summary.items() if name != "cpu_throttled_pct"}
    assert Usage(alone).others_cores == 0.0
    for figures, kind in (summary, "contended"), (alone, "oversubscribed"):
        found = findings_of(NodeDocument(summary={**figures, "job_run_delay_pct": 85.0}))
        kinds = {one.kind for one in found if one.share > 0.2}
        assert kinds & {"contended", "oversubscribed"} == {kind}


@pytest.mark.parametrize(("used", "said"), [(0.5, "at times more threads"), (1.5, "6 threads")])
def test_as_many_threads_are_told_as_the_job_had_on_average(used: float, said: str) -> None:
    """A job that had fewer than CPUs on average had too many at times, and not one."""
    span = replace(read_spans(NodeDocument())[0], seconds=1.0, used=used, run_delay=0.75)
    usage = Usage({"cpu_limit_cores": 2.0, "job_cpu_avg_cores": used})
    facts = Facts(usage, [span], {"oversubscribed": 0.3}, MemoryTrend())
    text, _ = SENTENCES["oversubscribed"](facts)
    assert text.startswith(f"The job had {said} to run on 2 CPUs")


@pytest.mark.parametrize(
    ("others", "evidence", "do"),
    [
        ({}, "The GPUs were 60% busy and", "more or faster GPUs would make it faster"),
        ({"gpu_others_avg_utilization_pct": 19.0}, "The GPUs were 60% busy and", "more or faster"),
        (
            {"gpu_others_avg_utilization_pct": 38.0},
            "The GPUs were 60% busy with the job and 38% with others and",
            "a GPU of its own would make it faster",
        ),
    ],
)
def test_others_on_the_gpus_are_named_from_a_fifth_of_the_time_on(
    others: dict[str, float], evidence: str, do: str
) -> None:
    """Beside others who keep the GPUs busy, faster GPUs are not what the job lacks."""
    figures = {"gpu_avg_utilization_pct": 60.0, "job_cpu_avg_cores": 0.5, "cpu_limit_cores": 4.0}
    document = NodeDocument(summary={**figures, "duration_sec": 60.0, **others})
    found = next(f for f in findings_of(document) if f.kind == "gpu")
    assert found.evidence.startswith(evidence)
    assert found.do.startswith(do)
