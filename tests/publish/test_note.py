"""The text for a run's overview page: what it says, where it leads, and when it may be replaced."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reports import html_samples as samples

from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.publish.note import (
    Links,
    may_replace,
    tag_run,
    write_run_note,
    write_workflow_note,
)
from mlflow_perf.publish.workflow_writer import Place
from mlflow_perf.reports.run_page import build_run_page
from mlflow_perf.tracking.run_handle import RunHandle

LINKS = Links("r1", "7", tracking_uri="http://127.0.0.1:5000", page=True)


def _document(**facts: object) -> PerfDocument:
    summary = {"duration_sec": 90.0, "max_t_mem_percent": 41.0, "total_disk_io_read_mb": 5.0}
    node = NodeDocument(component="train", status="KILLED", summary=summary)
    node.extra.update(facts)
    return PerfDocument({0: node})


def test_the_advice_stands_first() -> None:
    """MLflow folds a long text: advice first, then how it ended and where the reports are."""
    advice, first, figures, _ = write_run_note(
        _document(bottleneck="cpu", advice="More CPUs."), LINKS
    ).split("\n\n")
    assert first.startswith("**train** Killed · [Report](#/experiments/7/runs/r1/artifacts/")
    assert first.endswith(" · [Performance page](./perf/run?id=r1)")
    assert "Node's memory peak **41%**" in figures
    assert "disk" not in figures
    assert advice == "**More CPUs.**"


def test_a_note_has_the_characters_that_every_table_takes() -> None:
    """MySQL's older default, which it calls latin1, has no sign for "at least"."""
    note = write_run_note(_document(cut_off=True), LINKS)
    assert "**>= 1 min 30 s**" in note
    assert note.encode("cp1252")


def test_the_note_the_tag_and_the_report_say_the_same() -> None:
    """The first finding is the verdict, and the others follow."""
    document = samples.document(2, rows=60)
    findings = findings_of(document)
    page = build_run_page(document)
    assert tag_run(document)["mlflow_perf.advice"] == page.verdict["advice"]
    assert page.verdict["advice"] == findings[0].sentence
    assert [row.evidence for row in page.findings] == [f.evidence for f in findings]
    note = write_run_note(document, LINKS).replace("\\", "")
    assert note.startswith(f"**{findings[0].sentence}**")
    assert all(f"> {finding.sentence}" in note for finding in findings[1:3])


@pytest.mark.parametrize(
    ("links", "known"),
    [
        (Links("r1", "7", tracking_uri="sqlite:///mlflow.db"), ["Report"]),
        (Links("r1", None, tracking_uri="http://127.0.0.1:1", page=True), ["Performance page"]),
        (Links("r1", "7", tracking_uri="azureml://host/x"), []),
    ],
)
def test_only_links_that_lead_somewhere(links: Links, known: list[str]) -> None:
    """Without the page, the experiment or MLflow's UI the report's place is named in words."""
    text = write_run_note(PerfDocument(), links)
    assert [name for name, _ in links.known] == known
    assert ("among the artifacts" in text) == ("Report" not in known)


def test_links_lead_into_the_workspace_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its workspace in the address, the server finds no such run."""
    monkeypatch.setenv("MLFLOW_WORKSPACE", "team-a")
    links = Links("r1", "7", tracking_uri="http://127.0.0.1:1", page=True)
    pipeline = Place("http://127.0.0.1:1").link("r1", "7")
    run = RunHandle("http://127.0.0.1:1", run_id="r1", experiment_id="7")
    addresses = [*dict(links.known).values(), pipeline, run.link() or ""]
    run.has_page = True
    addresses.append(run.link() or "")
    assert addresses[-1] == "http://127.0.0.1:1/perf/run?id=r1&workspace=team-a"
    assert all(address.endswith("&workspace=team-a") for address in addresses)


def test_a_workflow_names_its_findings() -> None:
    """The parent's overview has the name, the worst status of its steps and what to change."""
    steps = [{"name": "fit", "status": "FAILED", "started": 1.0, "duration_sec": 5.0}]
    text = write_workflow_note(
        {"name": "whole", "steps": steps, "findings": ["Change fit."]}, LINKS
    )
    assert text.startswith("**Change fit.**\n\n**whole** Failed · [Report]")


@settings(max_examples=40)
@given(name=st.text(), advice=st.text())
def test_no_name_has_a_meaning(name: str, advice: str) -> None:
    """Whatever a name holds, the note has its own links, no other, and is known as ours again."""
    document = _document(bottleneck="cpu", advice=advice)
    document.nodes[0].component = f"{name}](javascript:x) <b>"
    text = write_run_note(document, LINKS)
    assert text.replace("\\]", "").count("](") == 2
    assert "<b>" not in text.replace("\\<", "")
    assert may_replace(text)


@settings(max_examples=40)
@given(st.data())
def test_a_changed_note_is_a_persons(data: st.DataObject) -> None:
    """Empty or ours to the letter may be replaced; with any letter changed, or another's, never."""
    text = write_run_note(_document(), LINKS)
    assert may_replace(text)
    assert may_replace(" \n")
    at = data.draw(st.integers(0, text.index("\n\n[//]") - 1))
    letter = data.draw(st.characters().filter(lambda c: c != text[at]))
    assert not may_replace(text[:at] + letter + text[at + 1 :])
    assert not may_replace("A note of mine.")
