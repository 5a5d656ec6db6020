"""Finds where a job's time went, sorted by the time at stake: the only source of verdicts.

The shares of the time come from `time_shares`. This module weights them, writes them as sentences
with the job's own figures, and adds risks that take no time, such as growing memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlflow_perf.analysis.finding_places import find_function, find_part
from mlflow_perf.analysis.finding_texts import SENTENCES, Facts
from mlflow_perf.analysis.memory_trend import read_memory_trend
from mlflow_perf.analysis.slow_nodes import describe_slow_nodes, read_durations
from mlflow_perf.analysis.span import Span
from mlflow_perf.analysis.step_causes import find_step_causes, read_loops
from mlflow_perf.analysis.time_shares import average_shares, read_spans, split_time
from mlflow_perf.analysis.usage import TOO_SHORT_SEC, Usage, ramp
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.format import format_count, join_some
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import TOO_SHORT

if TYPE_CHECKING:
    from mlflow_perf.recorders.steps.stats import LoopRecord

_LEAST_SHARE = 0.05

BOTTLENECK_OF_KIND: Mapping[str, str] = {
    "serial": "cpu",
    "saturated": "cpu",
    "contended": "cpu",
    "oversubscribed": "cpu",
    "waiting": "waiting",
    "disk": "disk",
    "network": "network",
    "memory": "memory",
    "memory_growth": "memory",
    "gpu": "gpu",
    "input": "input",
    "straggler": "waiting",
    "steps": "balanced",
    "idle": "idle",
    "too_short": "balanced",
    "balanced": "balanced",
}
"""Kind of finding → the word of the tag `mlflow_perf.bottleneck`; a quota's word is `throttled`,
that of others on the job's GPUs is `gpu`, and that of `steps` is the word of how the job spent its
time, which its evidence names."""

KINDS = tuple(BOTTLENECK_OF_KIND)
_OF_STEPS = ("input", "straggler", "steps")

_SPENT_TIME = {
    "cpu": "computing",
    "throttled": "held back by the CPU quota",
    "waiting": "waiting",
    "disk": "reading and writing",
    "network": "receiving and sending",
    "gpu": "on the GPU",
}
"""Word of the tag → how the job spent most of its time, for the evidence of slow steps."""

_WORD_OF_CAUSE = {**BOTTLENECK_OF_KIND, "garbage": "cpu", "page_faults": "memory"}

_WEIGHTS = {
    "contended": 1.3,
    "contended_gpu": 1.3,
    "gpu": 1.2,
    "saturated": 0.8,
    "serial": 0.75,
    "balanced": 0.6,
    "idle": 0.5,
    "input": 1.3,
    "straggler": 1.3,
    "steps": 1.2,
    "memory": 2.0,
    "memory_growth": 2.5,
}
"""Kind → its weight when findings are sorted. A second lost to other processes can be regained as a
whole, a second of computing cannot. A risk that may kill the job counts more. Others weigh 1."""


@dataclass(frozen=True)
class Finding:
    """One use of a job's time, or one risk to the job.

    Attributes:
        kind: One of `KINDS`.
        severity: `high`, `medium` or `low`, from the time at stake and the confidence.
        share: Share of the job's time that it concerns, from 0 to 1.
        evidence: The figures, as the first half of a sentence.
        do: The recommendation, as the second half of the sentence.
        phase: The part of the run that it concerns, such as `4 s to 10 s`; None for all of it.
        function: The function in which the time was spent, if there is a profile.
        confidence: Certainty of the kind, from 0 to 1; lower if another kind is almost as likely.
        rank: The rank that it concerns; None if it concerns all.
        part: The part of a loop's steps that it concerns; None if it concerns the whole step.
        bottleneck: The kind as the word of the tag `mlflow_perf.bottleneck`; empty without figures.
        caller: The function that called `function` for most of its time, if several call it.
    """

    kind: str
    severity: str
    share: float
    evidence: str
    do: str
    phase: str | None = None
    function: str | None = None
    confidence: float = 1.0
    rank: int | None = None
    part: str | None = None
    bottleneck: str = ""
    caller: str | None = None

    @property
    def word(self) -> str:
        """The verdict as one word for people, which is `too short` for a block under a second."""
        return TOO_SHORT if self.kind == "too_short" else self.bottleneck or "unknown"

    @property
    def sentence(self) -> str:
        """The evidence and the recommendation, as one sentence."""
        return f"{self.evidence}: {self.do}." if self.do else f"{self.evidence}."

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        keys = ("kind", "severity", "share", "evidence", "do", "phase", "function", "confidence")
        where = {key: getattr(self, key) for key in ("rank", "part", "caller")}
        known = {key: value for key, value in where.items() if value is not None}
        return {key: getattr(self, key) for key in keys} | known


def findings_of(document: PerfDocument | NodeDocument) -> list[Finding]:
    """Return the findings of a run, most time at stake first; the first one is the verdict."""
    if isinstance(document, NodeDocument):
        findings = _find_in_node(document)
        others, notes = document.extra.get("overlapping_runs"), []
        if document.extra.get("of_parent") is True:
            notes.append("these figures are of the whole parent run, after which it was logged")
        if isinstance(others, int) and others >= 1:  # the figures include those runs
            runs = format_count(others, "other run")
            notes.append(f"{runs} of the same process ran meanwhile")
        if notes:
            text = f"{findings[0].evidence} ({'; '.join(notes)})"
            findings[0] = replace(findings[0], evidence=text)
        return findings
    judge = NodeJudge()
    judge.visit(PerfDocument(document.nodes))
    return judge.merge(document.nodes)


class NodeJudge:
    """Judges a run's nodes while its documents are read, when they still have their curves."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, list[Finding]]] = {}

    def visit(self, document: PerfDocument) -> None:
        """Judge the nodes in one of the run's documents."""
        for name, part in {"": document, **document.components}.items():
            for index, node in part.nodes.items():
                self._found.setdefault(name, {})[index] = findings_of(node)

    def merge(self, nodes: Mapping[int, NodeDocument], component: str = "") -> list[Finding]:
        """Return the findings of all nodes of a component, the verdict first.

        Args:
            nodes: Node index → its document; it needs no curves.
            component: Name of a further component; the run's first one is named "".
        """
        found = self._found.get(component)
        if not found:
            return []
        ordered = [(index, nodes[index]) for index in sorted(nodes)]
        by_node = {index: found[index] for index in sorted(found)}
        loops = read_loops(node for _, node in ordered)
        return merge_findings(by_node, loops, read_durations(ordered))


def judge_part(spans: Sequence[Span], start_sec: float, end_sec: float) -> str:
    """Return the kind of finding with most time at stake in one part of a node's run.

    Args:
        spans: The node's time.
        start_sec: Begin of the part, from the start of the run.
        end_sec: Its end.
    """
    inside = [
        replace(span, seconds=seconds)
        for span in spans
        if (seconds := min(end_sec, span.start_sec + span.seconds) - max(start_sec, span.start_sec))
        > 0
    ]
    inside = inside or list(spans)
    shares = average_shares(inside, [split_time(span) for span in inside])
    if not spans[0].own:
        shares["idle"] = shares.pop("waiting")
    return max(shares, key=lambda kind: shares[kind] * _WEIGHTS.get(kind, 1.0))


def merge_findings(
    nodes: Mapping[int, Sequence[Finding]],
    loops: Mapping[str, Mapping[int, LoopRecord]],
    durations: Mapping[int, float],
) -> list[Finding]:
    """Return the findings of all nodes together, the one with most time at stake first.

    Findings of one kind on several nodes become one that names the nodes; its share is the mean
    over all nodes, and its sentence that of the node with most of it. Those of loops are made
    again, from the ranks of all nodes.

    Args:
        nodes: Node index → the findings of that node.
        loops: Loop → rank of any node → its steps.
        durations: Node index → how long it took, in seconds, of those that finished.
    """
    if len(nodes) == 1:
        return list(next(iter(nodes.values())))
    by_kind: dict[tuple[str, bool], list[tuple[int, Finding]]] = {}
    for index, found in nodes.items():
        for finding in found:
            if finding.kind in _OF_STEPS:
                continue
            # CPUs and GPUs may both be contended on one node.
            which_kind = finding.kind, finding.bottleneck == "gpu"
            by_kind.setdefault(which_kind, []).append((index, finding))
    merged = []
    for same in by_kind.values():
        most_on, worst = max(same, key=lambda found: found[1].share)
        share = sum(finding.share for _, finding in same) / len(nodes)
        places = []
        if len(same) < len(nodes):
            which = join_some([str(index) for index, _ in same])
            places.append(f"{'nodes' if len(same) > 1 else 'node'} {which}")
        if any(finding.evidence != worst.evidence for _, finding in same):
            places.append(f"figures of node {most_on}")
        text = f"{worst.evidence} ({'; '.join(places)})" if places else worst.evidence
        # The confidence was that among the findings of one node: it is made again, by `_rank`.
        merged.append(replace(worst, share=share, evidence=text, confidence=1.0))
    found = _find_in_steps(loops, 0.0, merged)
    slow = describe_slow_nodes(durations)
    if slow is not None and not any(finding.kind == "straggler" for finding in found):
        do = "look at what it had to do, and at what else its node did"
        found = [*found, Finding("straggler", "", *slow, do, bottleneck="waiting")]
    return _rank(_join_steps(merged, found))


def _join_steps(others: Sequence[Finding], of_steps: Sequence[Finding]) -> list[Finding]:
    """Return both kinds of findings; time that the steps explain counts less elsewhere."""
    explained = sum(f.share for f in of_steps if f.kind in _OF_STEPS)
    joined = [
        replace(f, confidence=max(0.1, 1.0 - explained / f.share))
        if f.kind in ("waiting", "idle", "balanced")
        else f
        for f in others
    ]
    return [*joined, *of_steps]


def _find_in_steps(
    loops: Mapping[str, Mapping[int, LoopRecord]],
    length_sec: float,
    others: Sequence[Finding] = (),
) -> list[Finding]:
    """Return what makes the steps of loops slow.

    Args:
        loops: Loop → rank → its steps.
        length_sec: Length of the job; 0 where it is that of its longest loop.
        others: The findings of the same nodes that are not of loops.
    """
    # A slow step is no resource: its word is where the time went, and its evidence says so.
    resources = [finding for finding in others if finding.bottleneck in _SPENT_TIME]
    worst = _rank(resources)[0].bottleneck if resources else "balanced"
    known = {finding.kind for finding in others}
    found = []
    in_loop_sec = {
        name: max(record.step.total_ms for record in ranks.values()) / 1e3
        for name, ranks in loops.items()
    }
    length_sec = length_sec or max(in_loop_sec.values(), default=0.0)
    for cause in find_step_causes(loops):
        share = cause.share * min(1.0, in_loop_sec[cause.loop] / length_sec)
        if share < _LEAST_SHARE or (cause.cause == "contended" and "contended" in known):
            continue
        kind = cause.cause if cause.cause in ("input", "straggler", "contended") else "steps"
        word = _WORD_OF_CAUSE.get(cause.cause, worst)
        is_guess = cause.cause not in _WORD_OF_CAUSE and resources and cause.may_be_spent(word)
        how = f", mostly {_SPENT_TIME[word]}" if is_guess else ""
        found.append(
            Finding(
                kind,
                "low",
                share,
                f"{cause.evidence}{how}",
                cause.do,
                confidence=cause.weight,
                rank=cause.rank,
                part=cause.part,
                bottleneck=word,
            )
        )
    return found


def _find_in_node(document: NodeDocument) -> list[Finding]:
    usage = Usage(document.summary, document.node)
    length = document.duration_sec or usage["duration_sec"]
    if 0 < length < TOO_SHORT_SEC and not usage["oom_kills"]:
        text = f"The block took {format_duration(length)}: {TOO_SHORT} to say what held it back"
        return [Finding("too_short", "low", 1.0, text, "", bottleneck="balanced")]
    spans = read_spans(document)
    shares = [split_time(span) for span in spans]
    totals = average_shares(spans, shares)
    # Of how many CPUs the job used some is in no import without such a column.
    key = "job_cpu_avg_cores" if usage.cores else "cpu_avg_utilization_pct"
    known = {"cpu_avg_utilization_pct", key} & document.summary.keys()
    if not known:
        totals = {kind: share for kind, share in totals.items() if kind in ("disk", "gpu")}
    elif not spans[0].own:
        # What the job waited for is known only where its own figures are.
        totals["idle"] = totals.pop("waiting")
    elif usage["gpu_avg_utilization_pct"] < 25 and spans[0].has_gpu:
        # One that waits for its GPU does not leave it idle.
        is_kept = ramp(totals["contended_gpu"], _LEAST_SHARE, 0.5)
        totals["idle"] = max(0.0, 1.0 - spans[0].mean_gpu) * (1.0 - is_kept)
    near_limit = ramp(usage.mem_pct, 88, 96) * (1.0 if usage.knows_own_memory else 0.6)
    killed = 2.0 if usage["oom_kills"] >= 1 else 0.0
    totals["memory"] = max(totals.get("memory", 0.0), near_limit, killed)
    trend = read_memory_trend(document)
    totals["memory_growth"] = trend.at_stake
    facts = Facts(usage, spans, totals, trend)
    found = []
    for kind, share in totals.items():
        if share < _LEAST_SHARE:
            continue
        evidence, do = SENTENCES[kind](facts)
        at_quota = usage["cpu_throttled_pct"] >= 5 or usage.own_quota > 0
        is_quota = kind == "contended" and at_quota
        word = "gpu" if kind == "contended_gpu" else BOTTLENECK_OF_KIND[kind]
        part = find_part(kind, spans, shares)
        if part is not None:
            # The other figures are of the whole run.
            used = format_count(part.used, "CPU")
            evidence += f", mostly from {part.name} ({used} used)"
        place = find_function(kind, document, part.bounds if part else None)
        finding = Finding(
            kind.removesuffix("_gpu"),
            "low",
            share,
            evidence,
            do,
            phase=part.name if part else None,
            function=place.function,
            bottleneck="throttled" if is_quota else word,
            caller=place.caller,
        )
        found.append(finding)
    found = _join_steps(found, _find_in_steps(read_loops([document]), length, found))
    if not found:
        text, word = "The node reported no CPU figures: there is no verdict", ""
        if known:
            text, word = "No single resource held the job back", "balanced"
        return [Finding("balanced", "low", 1.0, text, "", bottleneck=word)]
    return _rank(found)


def _rank(found: Sequence[Finding]) -> list[Finding]:
    """Return findings by the time at stake, with their confidence and severity."""

    def at_stake(finding: Finding) -> float:
        return finding.share * finding.confidence * _WEIGHTS.get(finding.kind, 1.0)

    ranked = sorted(found, key=at_stake, reverse=True)
    stakes = [*map(at_stake, ranked), 0.0]
    sure = []
    for finding, stake in zip(ranked, stakes, strict=False):
        rival = stakes[1] if finding is ranked[0] else stakes[0]
        confidence = round(finding.confidence * stake / (stake + rival), 2)
        strength = min(1.0, stake) * (0.5 + confidence / 2)
        severity = "high" if strength >= 0.5 else "medium" if strength >= 0.2 else "low"
        severity = "low" if finding.kind == "balanced" else severity
        share = round(min(1.0, finding.share), 4)
        sure.append(replace(finding, share=share, confidence=confidence, severity=severity))
    return sure
