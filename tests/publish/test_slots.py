"""The place of a report among those that its run has already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.publish.slots import (
    RunReports,
    Slot,
    choose_tags,
    find_left_over,
    find_slot,
    find_unseen_slot,
    is_same_recording,
    merge_reports,
    name_replaced,
    read_repeated,
)


def _report(
    started: float, *, sec: float = 10, host: str = "a", name: str = "train", **node: Any
) -> NodeDocument:
    facts = {"index": 0, "count": 1, "hostname": host, "pid": 1, **node}
    return NodeDocument(node=facts, component=name, started=started, duration_sec=sec)


def test_the_first_report_has_the_plain_place() -> None:
    """Without others there is nothing to give way to."""
    slot = find_slot(_report(100), 0, {})
    assert (slot, slot.path, slot.prefix) == (Slot(), "node-0.json", "")


def test_another_component_is_kept_below_its_name() -> None:
    """Its metrics and its document have a folder, in whatever order the two began."""
    for began in (50, 200):
        slot = find_slot(_report(began, name="fit"), 0, {"": {0: _report(100)}})
        assert (slot.path, slot.prefix) == ("fit/node-0.json", "fit/")
        assert not slot.outdated
    odd = find_slot(_report(200, name="../x y"), 0, {"": {0: _report(100)}})
    assert odd.folder.startswith("_x y-")


def test_a_later_report_of_the_same_node_replaces_the_older() -> None:
    """A retry counts; what a killed first attempt left and sends later does not."""
    first, second = _report(100), _report(200)
    assert find_slot(second, 0, {"": {0: first}}) == Slot(None, 0, {0: first})
    assert find_slot(first, 0, {"": {0: second}}).is_older
    in_folder = {"": {0: _report(1, name="other")}, "train": {0: first}}
    assert find_slot(second, 0, in_folder) == Slot("train", 0, {0: first})


def test_a_report_that_is_sent_again_replaces_nothing() -> None:
    """An earlier state of the same recording has the same process and start."""
    assert find_slot(_report(100, sec=20), 0, {"": {0: _report(100)}}) == Slot()
    assert not is_same_recording(_report(100, pid=1), _report(100, pid=2))


def test_two_hosts_that_both_are_node_0_are_two_nodes() -> None:
    """They worked at the same time; a retry on another host did not, and replaces."""
    there = {"": {0: _report(100)}}
    assert find_slot(_report(101, host="b"), 0, there).index == 1
    assert find_slot(_report(110, host="b"), 0, there).outdated
    three = {"": {0: _report(100), 1: _report(101, host="b")}}
    assert find_slot(_report(102, host="c"), 0, three).index == 2
    assert find_slot(_report(101, sec=12, host="b"), 0, three).index == 1  # sent again


def test_four_nodes_retried_as_two_are_two() -> None:
    """The nodes beyond are of the earlier attempt, also where they are sent later."""
    earlier = {i: _report(100, host=f"n{i}", index=i, count=4) for i in range(4)}
    slot = find_slot(_report(200, host="n0", count=2), 0, {"": earlier})
    assert slot.outdated.keys() == {0, 2, 3}
    later = {i: _report(200, host=f"n{i}", index=i, count=2) for i in range(2)}
    assert find_slot(earlier[3], 3, {"": later}).is_older


def test_blocks_on_given_nodes_in_turn_are_kept_beside_each_other() -> None:
    """`MLFLOW_PERF_NODE` may number the parts of a job that run one after the other."""
    slot = find_slot(_report(200, index=1, count=2), 1, {"": {0: _report(100)}})
    assert slot == Slot(None, 1)


def test_a_replaced_report_has_the_time_in_its_name() -> None:
    """Its name is not that of a document, so that nobody loads it."""
    name = name_replaced(3, _report(1763640000.25))
    assert name == "replaced-node-3-20251120T120000.250000Z.json"


def test_reports_are_read_once_and_damaged_ones_left_out(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both components of a run come back as one document; a file without a node is none."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    for path in ("node-0.json", "fit/node-0.json", "fit/node-1.json"):
        name = "fit" if "/" in path else "train"
        (tmp_path / "perf" / path).parent.mkdir(parents=True, exist_ok=True)
        PerfDocument({0: _report(100, name=name)}).save(tmp_path / "perf" / path)
    PerfDocument().save(tmp_path / "perf" / "node-1.json")
    (tmp_path / "perf" / "node-2.json").write_text("{")
    client.log_artifacts(run_id, str(tmp_path / "perf"), "perf")
    reports = RunReports(client, run_id, "perf")
    found = reports.look()
    assert {folder: set(nodes) for folder, nodes in found.items()} == {"": {0}, "fit": {0, 1}}
    assert reports.look(again=["node-0.json"]) == found
    whole = merge_reports(found)
    assert [node.component for node in whole.all_nodes()] == ["train", "fit", "fit"]
    assert "perf/node-2.json" in caplog.text


def test_a_report_that_replaces_another_one_says_anew_who_measured_it() -> None:
    """A run that was made inside another one and again by itself is in no other run's figures."""
    mine, stored = {"a": "b"}, {"mlflow_perf.measured_by": "p"}
    assert choose_tags(Slot(), mine, {}) == mine
    assert choose_tags(Slot(), mine, stored) == {"mlflow_perf.measured_by": "", "a": "b"}
    assert choose_tags(Slot(), {"mlflow_perf.measured_by": "q"}, stored) == {
        "mlflow_perf.measured_by": "q"
    }
    assert choose_tags(Slot("other"), mine, stored) == {}
    failed = {"mlflow_perf.cause": "exit code 2", "mlflow_perf.cut_off": "True", "mine": "kept"}
    assert choose_tags(Slot(), mine, failed) == {
        "mlflow_perf.cause": "", "mlflow_perf.cut_off": "", "a": "b"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tags", "prefix"),
    [
        ({}, ""),
        ({"mlflow_perf.version": "1", "mlflow_perf.component": "fit"}, ""),
        ({"mlflow_perf.version": "1", "mlflow_perf.component": "load"}, "fit/"),
        ({"mlflow_perf.status": "FINISHED", "mlflow_perf.component": "load"}, ""),
    ],
)
def test_only_a_report_takes_the_plain_keys(tags: dict[str, str], prefix: str) -> None:
    """A pipeline's runner may have ended a step's run before the step's own report is sent."""
    assert find_unseen_slot(NodeDocument(component="fit"), tags).prefix == prefix


def test_an_earlier_attempt_keeps_no_plain_keys() -> None:
    """Another attempt of a step may report under another name; its nodes replace the earlier ones.

    What ended since belongs to this attempt.
    """
    first = {i: _document("load", 10.0, count=2) for i in (0, 1)}
    mine = _document("train", 100.0)
    assert find_slot(mine, 0, {"": first}).component == "train"
    slot = find_slot(mine, 0, {"": first}, repeated=50.0)
    assert (slot.component, slot.index, set(slot.outdated)) == (None, 0, {0, 1})
    # One rank of two reports: that of the other node is the failed attempt's.
    again = {i: _document("load", 100.0, count=2) for i in (0, 1)}
    for i in (0, 1):
        assert set(find_slot(again[i], i, {"": first}, repeated=50.0).outdated) == {0, 1}
    there = {0: first[0], 1: again[1]}
    assert set(find_slot(again[1], 1, {"": there}, repeated=50.0).outdated) == {0}
    now = {0: _document("train", 100.0), 1: first[1]}
    assert find_slot(_document("test", 120.0), 0, {"": now}, repeated=50.0).component == "test"
    timeless = NodeDocument(component="load")  # of a job that was never repeated
    assert find_slot(mine, 0, {"": {0: timeless}}).component == "train"
    assert not any(find_left_over(Slot(), {"load": {0: timeless}}, 0.0).values())
    assert any(find_left_over(Slot(), {"load": first}, 50.0).values())
    assert read_repeated({"mlflow_perf.repeated": "50.0"}) == 50.0
    assert read_repeated({"mlflow_perf.repeated": "x"}) == read_repeated({}) == 0.0


def _document(component: str, started: float, *, count: int = 1) -> NodeDocument:
    node = {"hostname": "here", "count": count, "pid": int(started)}
    return NodeDocument(node=node, component=component, started=started, duration_sec=5.0)
