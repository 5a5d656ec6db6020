"""A gate's decision as Markdown and as JUnit XML."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from mlflow_perf.analysis import markdown
from mlflow_perf.analysis.gate import GateResult
from mlflow_perf.analysis.metric_text import format_metric
from mlflow_perf.core.format import format_change, format_count, join_some
from mlflow_perf.model.metrics.names import name_metric

_OUTCOMES = {
    "passed": "✅ passed",
    "failed": "❌ **failed**",
    "noise": "✅ within noise",
    "no base": "➖ not judged",
}
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def to_markdown(result: GateResult) -> str:
    """Return the decision, for a pull request or a job's summary."""
    failed = len(result.failures) + sum(not check.passed for check in result.checks)
    checked = format_count(len(result.checks), "check")
    title = f"failed ({failed})" if failed else f"passed ({checked})"
    if result.unjudged and not failed:
        title = f"cannot judge ({format_count(len(result.unjudged), 'limit')})"
    base, new = (
        join_some(map(markdown.escape, labels)) or "none" for labels in (result.base, result.new)
    )
    parts = [f"### Performance gate {title}", f"Base: {base}. New: {new}."]
    parts += [f"> {markdown.escape_sentence(result.sentence)}."] if result.sentence else []
    parts += [f"> **Failed:** {markdown.escape(text)}" for text in result.failures]
    parts += [f"> **Not judged:** {markdown.escape(text)}" for text in result.unjudged]
    for step, sentence in result.functions.items():
        if sentence not in result.sentence:
            parts.append(f"> {markdown.escape(step)}: {markdown.escape_sentence(sentence)}.")
    parts += [f"> {markdown.escape(note)}" for note in result.notes]
    header = ["Step", "Limit", "Result", "Figure", "Decided by", "Base", "New", "Change"]
    rows = [
        [
            markdown.escape(check.step),
            markdown.format_code(check.limit.text),
            _OUTCOMES[check.outcome],
            markdown.escape(name_metric(key)),
            markdown.escape(check.how),
            format_metric(key, check.base_median),
            format_metric(key, check.new_median),
            format_change(check.change_pct),
        ]
        for check, key in ((check, check.limit.key) for check in result.checks)
    ]
    return "\n\n".join([*parts, markdown.format_table(header, rows, right=3)]) + "\n"


def to_junit(result: GateResult) -> str:
    """Return the decision as JUnit XML: a test case per check."""
    cases = []
    for check in result.checks:
        key = check.limit.key
        base, new = format_metric(key, check.base_median), format_metric(key, check.new_median)
        name = name_metric(key)
        message = _clean(f"{name}: {base} → {new} ({format_change(check.change_pct)}).")
        how = _clean(check.how)
        names = {"classname": _clean(check.step), "name": _clean(check.limit.text)}
        case = ET.Element("testcase", names)
        if not check.passed:
            functions = _clean(result.functions.get(check.step, ""))
            message = f"{message} {functions}." if functions else message
            ET.SubElement(case, "failure", {"message": message}).text = f"{message} {how}"
        elif check.outcome == "no base":
            ET.SubElement(case, "skipped", {"message": how})
        else:
            ET.SubElement(case, "system-out").text = f"{message} {how}"
        cases.append(case)
    for text in result.failures:
        case = ET.Element("testcase", {"classname": "status", "name": "new runs finished"})
        ET.SubElement(case, "failure", {"message": _clean(text)}).text = _clean(text)
        cases.append(case)
    failed = sum(case.find("failure") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    # In Jenkins' schema, the strictest of the readers', only the suite has `skipped`.
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": "0"}
    names = {"name": "mlflow-perf check", "skipped": str(skipped)}
    suite = ET.Element("testsuite", {**names, **counts})
    suite.extend(cases)
    root = ET.Element("testsuites", counts)
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("�", text)
