"""A gate's decision as Markdown and as JUnit XML. Imports the gate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from mlflow_perf.analysis import markdown, metric_text
from mlflow_perf.analysis.gate import Check, GateResult

__all__ = ["to_junit", "to_markdown"]

_OUTCOMES = {"passed": "✅ passed", "failed": "❌ **failed**", "noise": "✅ within noise"}
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def to_markdown(result: GateResult) -> str:
    """Return what was decided, for a pull request or a job's summary."""
    failed = len(result.failures) + sum(not c.passed for c in result.checks)
    count = len(result.checks)
    checked = "1 check" if count == 1 else f"{count} checks"
    title = f"failed ({failed})" if failed else f"passed ({checked})"
    sides = f"Base: {_names(result.base)}. New: {_names(result.new)}."
    parts = [f"### Performance gate {title}", sides]
    parts += [f"> **Failed:** {markdown.escape(text)}" for text in result.failures]
    parts += [f"> {markdown.escape(note)}" for note in result.notes]
    header = ["Step", "Limit", "Result", "Decided by", "Base", "New", "Change"]
    parts.append(markdown.format_table(header, map(_cells, result.checks), right=3))
    return "\n\n".join(parts) + "\n"


def _names(labels: tuple[str, ...]) -> str:
    if not labels:
        return "none"
    more = f" and {len(labels) - 5} more" if len(labels) > 5 else ""
    return ", ".join(map(markdown.escape, labels[:5])) + more


def _cells(c: Check) -> list[str]:
    unit = metric_text.find_unit(c.limit.key)
    return [
        markdown.escape(c.step),
        markdown.format_code(c.limit.text),
        _OUTCOMES.get(c.outcome, f"✅ {c.outcome}"),
        markdown.escape(c.how),
        metric_text.format_value(c.base_median, unit),
        metric_text.format_value(c.new_median, unit),
        metric_text.format_change(c.change_pct),
    ]


def to_junit(result: GateResult) -> str:
    """Return what was decided as JUnit XML: a test case per check."""
    cases = [*_case_of_checks(result), *_case_of_failures(result)]
    failed = sum(case.find("failure") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    # Jenkins' schema, the strictest of the readers', has `skipped` on the suite only.
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": "0"}
    names = {"name": "mlflow-perf check", "skipped": str(skipped)}
    suite = ET.Element("testsuite", {**names, **counts})
    suite.extend(cases)
    root = ET.Element("testsuites", counts)
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case_of_checks(result: GateResult) -> Iterator[ET.Element]:
    for c in result.checks:
        case = _case(c.step, c.limit.text)
        text = _clean(f"{_sentence(c)} {c.how}")
        if not c.passed:
            ET.SubElement(case, "failure", {"message": _clean(_sentence(c))}).text = text
        elif c.outcome == "no base":
            ET.SubElement(case, "skipped", {"message": _clean(c.how)})
        else:
            ET.SubElement(case, "system-out").text = text
        yield case


def _case_of_failures(result: GateResult) -> Iterator[ET.Element]:
    for text in result.failures:
        case = _case("status", "new runs finished")
        ET.SubElement(case, "failure", {"message": _clean(text)}).text = _clean(text)
        yield case


def _case(classname: str, name: str) -> ET.Element:
    return ET.Element("testcase", {"classname": _clean(classname), "name": _clean(name)})


def _sentence(c: Check) -> str:
    unit = metric_text.find_unit(c.limit.key)
    base, new = (metric_text.format_value(v, unit) for v in (c.base_median, c.new_median))
    return f"{c.limit.key}: {base} → {new} ({metric_text.format_change(c.change_pct)})."


def _clean(text: str) -> str:
    return _NOT_XML.sub("�", text)
