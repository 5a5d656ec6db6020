"""Explains a run, or the change from one run to another, in few words for people and agents."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlflow_perf.analysis.change_sentence import measure_run, measure_side
from mlflow_perf.analysis.compare import Comparison, compare
from mlflow_perf.analysis.findings import Finding, NodeJudge, findings_of
from mlflow_perf.analysis.markdown import escape, escape_sentence, format_code
from mlflow_perf.analysis.metric_text import format_row
from mlflow_perf.analysis.phases import Phase, describe_phase, read_phases
from mlflow_perf.analysis.step_runs import collect_steps, find_steps
from mlflow_perf.core.format import cut_text, format_change, format_count, join_some
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.json_io import read_number
from mlflow_perf.core.uris import redact_password
from mlflow_perf.model.callers import describe_caller, find_main_caller
from mlflow_perf.model.document import BROKEN, NodeDocument, PerfDocument
from mlflow_perf.model.profile import format_share, list_functions, name_function
from mlflow_perf.tracking.load import RunRef, load
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import get_run

TOKENS_MAX = 2000
"""The longest explanation. Tokens are counted so that no tokenizer in use finds more."""

_TEXT_MAX = 300
_FINDINGS_MAX, _PHASES_MAX, _FUNCTIONS_MAX, _ROWS_MAX, _NOTES_MAX = 6, 12, 10, 8, 6

_PRIVATE = r"(?:passw(?:or)?d|token|secret|api[_-]?key|access[_-]?key|credential)s?"
# No unbounded run of characters comes before the word: a long name would take quadratic time.
# After a colon may stand a plain word, as in a step's name: only what looks like a key is one.
_SECRET = re.compile(
    rf"(?i)(--[\w-]{{0,40}}{_PRIVATE}\s+|{_PRIVATE}\s*(?:=|:(?=\s*[^\s,;)]*\d))\s*)[^\s,;)]+"
)
_QUERY = re.compile(r"(?<=\w)\?[\w%.-]+=[^\s)]*")
_PATH = re.compile(
    r"(?:\b(?:file|sqlite):/*|(?<![\w/:.…])(?:~|[A-Za-z]:)?)(?:[/\\][^\s/\\:,;'\"()|]+)+[/\\]?"
)


@dataclass(frozen=True)
class Explanation:
    """What is worth saying about a run.

    Attributes:
        label: The run's name for people.
        run_id: The MLflow run; None for a file that names none.
        status: How it ended, with the cause where that is known.
        duration_sec: How long its longest node took; None where unknown.
        findings: Its findings, most time at stake first.
        phases: Its phases, on the node that took longest.
        functions: The functions that took most time, on the same node; first the job's own that
            computed.
        step: The step of a workflow whose functions they are; empty for a run. The findings' shares
            are of the time of all steps together then.
        is_cut_off: Whether its duration is a lower bound, as that of a killed job.
        base: The run that it is compared with.
        comparison: The two side by side.
        changes: What changed, in sentences.
    """

    label: str
    run_id: str | None
    status: str
    duration_sec: float | None
    findings: Sequence[Finding]
    phases: Sequence[Phase] = ()
    functions: Sequence[Mapping[str, Any]] = ()
    step: str = ""
    is_cut_off: bool = False
    base: Explanation | None = None
    comparison: Comparison | None = None
    changes: Sequence[str] = field(default=())

    @property
    def verdict(self) -> str:
        """The first finding in a word."""
        return self.findings[0].word if self.findings else "unknown"

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data, without paths and secrets."""
        keys = ("kind", "severity", "share", "evidence", "do")
        data: dict[str, Any] = {
            "run_id": self.run_id,
            "verdict": self.verdict,
            "status": self.status,
            "findings": [
                {key: getattr(one, key) for key in keys} for one in self.findings[:_FINDINGS_MAX]
            ],
            "phases": [phase.as_dict() for phase in self.phases[:_PHASES_MAX]],
            "functions": [
                {**row, **({"step": self.step} if self.step else {})}
                for row in self.functions[:_FUNCTIONS_MAX]
            ],
        }
        if self.base is not None and self.comparison is not None:
            data["base"] = {"run_id": self.base.run_id, "verdict": self.base.verdict}
            data["changes"] = list(self.changes)
            names = ("component", "node", "metric", "values", "change_pct", "verdict")
            data["metrics"] = [
                {name: getattr(row, name) for name in names} for row in self._list_rows()
            ]
        clean: dict[str, Any] = hide_private(data)
        return clean

    def to_markdown(self) -> str:
        """Return the explanation as Markdown of at most 2,000 tokens."""
        least = "at least " * self.is_cut_off
        took = "" if not self.duration_sec else f", {least}{format_duration(self.duration_sec)}"
        lines = [f"## {_say(self.label)}: {self.verdict}", f"{_say(self.status)}{took}."]
        if self.base is not None:
            lines[0] = f"## {_say(self.base.label)} → {_say(self.label)}"
            lines += [
                "",
                "### What changed",
                *(f"- {_say(text, escape_sentence)}" for text in self.changes),
            ]
            for row in self._list_rows():
                before, *_, after = format_row(row.values, row.unit)
                change = f"{format_change(row.change_pct)} {row.verdict}".strip()
                name = format_code(hide_private(row.metric)[:80])
                lines.append(f"- {name}: {before} → {after} ({change})")
            if len(lines) == 4:
                lines.append("- Nothing that counts.")
        lines += ["", "### Findings"]
        of_time = "steps' time" if self.step else "time"
        for i, one in enumerate(self.findings[:_FINDINGS_MAX], 1):
            kind = one.kind.replace("_", " ")
            verdict = f"**{kind}**, {one.severity}, {100 * one.share:.0f}% of the {of_time}: "
            # Without figures there is no kind and no share.
            lines.append(f"{i}. {verdict if one.bottleneck else ''}{_say(one.sentence)}")
        if len(self.phases) > 1:
            lines += ["", "### Phases"]
            lines += [f"- {_say(describe_phase(one))}" for one in self.phases[:_PHASES_MAX]]
        if self.functions:
            of_step = f" of step {_say(self.step)}" if self.step else ""
            lines += ["", f"### Functions{of_step}"]
        for row in self.functions[:_FUNCTIONS_MAX]:
            where = f"{row.get('function')} ({row.get('file')}:{row.get('line')})"
            own, total = (format_share(row, key) for key in ("self", "total"))
            shares = f"{own} itself, {total} with callees, {row.get('cpu_pct') or 0:.0f}% computing"
            caller = row.get("caller")
            by = f", {_say(describe_caller(str(caller)))}" if caller else ""
            lines.append(f"- {_say(where)}: {shares}{by}")
        return _cut(lines)

    def _list_rows(self) -> list[Any]:
        """Return the metrics that got worse, then those that got better, the largest first."""
        assert self.comparison is not None
        return [*self.comparison.worse[:_ROWS_MAX], *self.comparison.better[:_ROWS_MAX]]


def explain(run: RunRef, other: RunRef | None = None) -> str:
    """Return an explanation of a run, or of the change from it to another run, as Markdown.

    The answer has at most 2,000 tokens, and neither paths nor passwords in it.

    Args:
        run: A run id, a path to a document or a folder of `node-*.json`; a workflow's parent too.
        other: A second run; the answer then explains the change from `run` to it.

    Raises:
        RunNotFoundError: When one does not exist or holds no performance data.
        DocumentError: When a file is not a document that this version reads.
    """
    return build_explanation(run, other).to_markdown()


def build_explanation(run: RunRef, other: RunRef | None = None) -> Explanation:
    """Return what `explain` says as data; arguments and errors are the same."""
    first, first_run = _explain_one(run)
    if other is None:
        return first
    last, last_run = _explain_one(other)
    comparison = compare([first_run, last_run])
    changes = [f"{comparison.sentence}."] if comparison.sentence else []
    if first.verdict != last.verdict:
        changes.append(f"Held back by: {first.verdict} → {last.verdict}.")
    changes += comparison.notes[:_NOTES_MAX]
    return replace(last, base=first, comparison=comparison, changes=changes)


def _explain_one(source: RunRef) -> tuple[Explanation, PerfRun]:
    """Return a run's explanation, and the run."""
    # The verdict needs the curves, as that in the tags; the documents below have none.
    judge = NodeJudge()
    run = get_run(source, judge.visit)
    judges = defaultdict(NodeJudge, {run.run_id: judge})
    children = find_steps(run, documents=True, visits=lambda run_id: judges[run_id].visit)
    side = collect_steps(run, children, with_silent=True)
    nodes: list[tuple[str, NodeDocument]] = []
    findings: list[Finding] = []
    if side.is_workflow:
        lengths = {name: measure_run(step) or 0.0 for name, step in side.steps.items()}
        whole = sum(lengths.values()) or 1.0
        for name, step in side.steps.items():
            if (document := _read_document(step)) is not None:
                nodes += [(name, node) for node in document.nodes.values()]
                first = _judge(step, document, judges[step.run_id])[0]
                share = round(first.share * lengths[name] / whole, 4)
                evidence = f"step {name}: {first.evidence}"
                findings.append(replace(first, share=share, evidence=evidence))
        findings.sort(key=lambda one: -one.share)
    else:
        [part] = side.steps.values()
        if (document := _read_document(part)) is not None:
            nodes = [("", node) for node in document.nodes.values()]
            findings = _judge(part, document, judges[part.run_id])
        else:
            load(source)  # raises the error that says why the run has no document
    name, longest = max(nodes, key=lambda pair: pair[1].duration_sec or 0.0, default=("", None))
    broken = side.steps if side.is_workflow and run.status in BROKEN else {}
    cause = join_some(f"{step}: {one.cause}" for step, one in broken.items() if one.cause)
    cause = cause or run.cause
    return (
        Explanation(
            side.label,
            run.run_id,
            f"{run.status or 'unknown'} ({cause})" if cause else run.status or "unknown",
            measure_side(side),
            findings,
            () if longest is None or side.is_workflow else read_phases(longest),
            () if longest is None else _rank_functions(longest),
            name,
            run.is_cut_off,
        ),
        run,
    )


def _judge(step: PerfRun, document: PerfDocument, judge: NodeJudge) -> list[Finding]:
    """Return the findings of a step, which is a run or one of its components."""
    if step.document is None:
        return findings_of(document)
    # The run's first component has no name there.
    return judge.merge(document.nodes, step.component or "") or judge.merge(document.nodes)


def _rank_functions(node: NodeDocument) -> list[dict[str, Any]]:
    """Return the functions of a profile, the job's own first, by their CPU time.

    A profile lists them by wall time, and threads of libraries that wait come first there. A row
    of a function that several call has the `caller` with most of its time.
    """
    own = {
        (str(row.get("function")), str(row.get("file"))): row for row in list_functions(node, "own")
    }
    rows = []
    for row in list_functions(node):
        file = str(row.get("file"))
        name = name_function(str(row.get("function")), file, row.get("line"))
        of_own = own.get((name, file), {})
        main_s, cpu_s = (read_number(of_own.get(key)) or 0.0 for key in ("main_s", "cpu_s"))
        # Workers compute for longer than the main thread; what waits does not compute.
        caller = find_main_caller(of_own, "cpu" if cpu_s > main_s / 2 else "main")
        rows.append((-cpu_s, {**row, "caller": caller} if caller else row))
    return [row for _, row in sorted(rows, key=lambda one: one[0])]


def _read_document(run: PerfRun) -> PerfDocument | None:
    """Return a run's document; that of an imported run, which has none, of its metrics alone."""
    if run.document is not None:
        return run.document if run.document.nodes else None
    nodes = {
        index: NodeDocument(
            {"index": index},
            run.component,
            duration_sec=summary.get("duration_sec", run.duration_sec),
            summary=dict(summary),
        )
        for index, summary in run.nodes.items()
    }
    return PerfDocument(nodes) if nodes else None


def hide_private(value: Any) -> Any:
    """Return plain data with paths cut to their last name, and passwords and keys starred."""
    if isinstance(value, dict):
        return {hide_private(key): hide_private(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_private(item) for item in value]
    if not isinstance(value, str):
        return value
    text = _SECRET.sub(r"\1***", _QUERY.sub("?…", redact_password(value)))
    return _PATH.sub(lambda found: "…/" + re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)


def _say(text: str, escape: Callable[[str], str] = escape) -> str:
    """Return a text for one line of Markdown: bounded, private parts hidden."""
    clean: str = hide_private(text)
    return escape(cut_text(clean, _TEXT_MAX))


def _cut(lines: Sequence[str]) -> str:
    """Return as many of the first lines as fit."""
    left = TOKENS_MAX - 20
    kept: list[str] = []
    for line in lines:
        # English has four characters to a token, figures two, and other scripts one or less.
        rare = [character for character in line if not character.isalpha() or character > "\x7f"]
        left -= (len(line) - len(rare) + 2) // 3 + sum(len(c.encode()) for c in rare) // 2 + 1
        if left < 0:
            kept.append(f"\n{format_count(len(lines) - len(kept), 'more line')} left out.")
            break
        kept.append(line)
    return "\n".join(kept).strip() + "\n"
