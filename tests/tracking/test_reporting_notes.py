"""The notes of steps on the time that mlflow-perf took beside them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.reporting_notes import (
    OWN_TAG,
    REPORTING_TAG,
    Reporting,
    ReportingNotes,
    count_apart,
    gathering_notes,
    is_gathering,
    note_group,
    note_own,
    note_reporting,
    read_notes,
    tag_notes,
)
from mlflow_perf.tracking.run_handle import RunHandle

RUN = "0123456789abcdef0123456789abcdef"


def _report(since_sec: float) -> PerfDocument:
    """Return the report of a block of 10 s that began so long ago."""
    return PerfDocument({0: NodeDocument(started=time.time() - since_sec, duration_sec=10.0)})


def test_a_step_of_a_group_notes_the_time_around_its_block(tmp_path: Path) -> None:
    """From the start of its process to the block, and from the block's end to now."""
    file = tmp_path / "notes"
    with gathering_notes(file):
        note_reporting(RunHandle(run_id=RUN), _report(since_sec=13.0), age_sec=14.0)
        tags = tag_notes(read_notes(file))
    found = ReportingNotes(tags).find(RUN)
    assert found == pytest.approx((1.0, 3.0), abs=0.2)
    assert ReportingNotes(tags).find("f" * 32) == Reporting()
    assert not file.exists()


def test_what_a_node_took_while_another_one_worked_kept_nobody_waiting(tmp_path: Path) -> None:
    """The time before a step is that before its first block, and the other one after its last."""
    file, now = tmp_path / "notes", time.time()
    with gathering_notes(file):
        for started, took, age in ((15.0, 10.0, 16.0), (14.5, 14.0, 20.0)):
            node = NodeDocument(started=now - started, duration_sec=took)
            note_reporting(RunHandle(run_id=RUN), PerfDocument({0: node}), age_sec=age)
        found = ReportingNotes(tag_notes(read_notes(file))).find(RUN)
    assert found == pytest.approx((5.0, 0.5), abs=0.2)


def test_the_steps_of_another_store_are_counted_once_each(tmp_path: Path) -> None:
    """Each rank of a step notes it; the times of its report are those of any step."""
    file = tmp_path / "notes"
    with gathering_notes(file):
        assert count_apart(read_notes(file)) == 0
        for run in (RUN, RUN, "f" * 32):
            handle = RunHandle(run_id=run, is_apart=True)
            note_reporting(handle, _report(since_sec=13.0))
        assert count_apart(read_notes(file)) == 2
        assert ReportingNotes(tag_notes(read_notes(file))).find(RUN).after_sec > 0


def test_without_a_group_or_a_report_nothing_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that has ended, or that runs on another machine, costs its steps nothing."""
    note_reporting(RunHandle(run_id=RUN), _report(13.0))
    file = tmp_path / "notes"
    with gathering_notes(file):
        note_reporting(RunHandle(), _report(13.0))
        note_reporting(RunHandle(run_id=RUN), None)
        note_reporting(RunHandle(run_id=RUN), PerfDocument({0: NodeDocument()}))
        assert tag_notes(read_notes(file)) == {}
    monkeypatch.setenv("MLFLOW_PERF_GROUP_NOTES", str(file))
    assert not is_gathering()
    note_reporting(RunHandle(run_id=RUN), _report(13.0))
    assert list(tmp_path.iterdir()) == []


def test_a_group_passes_its_notes_on_to_the_group_around_it(tmp_path: Path) -> None:
    """The steps of the inner group are those of both."""
    before, outer = dict(os.environ), tmp_path / "outer"
    with gathering_notes(outer):
        with gathering_notes(tmp_path / "inner"):
            note_reporting(RunHandle(run_id=RUN), _report(12.0))
        assert list(tag_notes(read_notes(outer))) == [f"{REPORTING_TAG}0"]
    assert dict(os.environ) == before


def test_a_group_waits_for_the_group_inside_it_before_and_after_its_steps(tmp_path: Path) -> None:
    """Its start and its report are mlflow-perf's own time in the outer group."""
    outer, inner, other = tmp_path / "outer", tmp_path / "inner", "f" * 32
    with gathering_notes(outer):
        with gathering_notes(inner):
            for run_id, since_sec in ((RUN, 40.0), (other, 12.0)):
                note_reporting(RunHandle(run_id=run_id), _report(since_sec), age_sec=since_sec + 1)
            noted = read_notes(inner)
        own = ReportingNotes(tag_notes(noted))
        note_group(noted, before_sec=3.0, after_sec=5.0)
        found = ReportingNotes(tag_notes(read_notes(outer)))
    for run_id, more in ((RUN, (3.0, 0.0)), (other, (0.0, 5.0))):
        before, after = own.find(run_id)
        assert found.find(run_id) == pytest.approx((before + more[0], after + more[1]), abs=0.01)
    note_group(noted, before_sec=3.0, after_sec=5.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["no folder/notes", "there"])
def test_a_group_that_can_make_no_file_names_none(tmp_path: Path, name: str) -> None:
    """Its steps note what they take for the group around it, if there is one."""
    outer = tmp_path / "there"
    with gathering_notes(outer), gathering_notes(tmp_path / name):
        note_reporting(RunHandle(run_id=RUN), _report(12.0))
        assert is_gathering()
        assert ReportingNotes(tag_notes(read_notes(outer))).find(RUN).after_sec > 0
    assert not is_gathering()
    assert list(tmp_path.iterdir()) == []


def test_notes_of_many_steps_fit_into_tags(tmp_path: Path) -> None:
    """Of very many steps the longest are kept; of two notes in tags the longest time counts."""
    file = tmp_path / "notes"
    file.write_text("".join(f"{i:012x}:0:{i}:5:5\n" for i in range(10_000)) + "odd:x:1:1:1\n")
    tags = tag_notes(read_notes(file))
    assert len(tags) == 25
    assert max(map(len, tags.values())) < 5000
    notes = ReportingNotes(tags)
    assert notes.find(f"{9_999:012x}").before_sec == 9.999
    assert notes.find(f"{6_999:012x}") == Reporting()
    twice = ReportingNotes(
        {f"{REPORTING_TAG}0": "a:1000:5000 a:2000:3000 damaged", "other": "b:1:1"}
    )
    assert twice.find("a") == (2.0, 5.0)
    assert twice.find("b") == Reporting()


def test_a_step_whose_report_is_kept_carries_its_own_note(tmp_path: Path) -> None:
    """The time before its block is noted first, and the other one once the report is given up."""
    delivery = Delivery(_report(since_sec=13.0).nodes[0])
    note_own(delivery, age_sec=14.0)
    assert OWN_TAG not in delivery.tags, "there is no group"
    with gathering_notes(tmp_path / "notes"):
        note_own(delivery, age_sec=14.0)
        begun = ReportingNotes({}, [(RUN, dict(delivery.tags))])
        note_own(delivery, is_over=True)
    assert begun.find(RUN) == pytest.approx((1.0, 0.0), abs=0.2)
    assert not begun.is_whole(RUN)
    ended = ReportingNotes({}, [(RUN, delivery.tags)])
    assert ended.find(RUN) == pytest.approx((1.0, 3.0), abs=0.2)
    assert ended.is_whole(RUN)
    of_group = ReportingNotes(
        {f"{REPORTING_TAG}0": f"{RUN[:12]}:5000:6000"}, [(RUN, delivery.tags)]
    )
    assert of_group.find(RUN) == (5.0, 6.0), "the group's note is that of all nodes"
