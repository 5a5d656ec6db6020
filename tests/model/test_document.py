"""The document: strict JSON, round trips, merging, and the seed's format."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.core.json_io import to_json
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import SCHEMA, NodeDocument, PerfDocument

numbers = st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9)
plain = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
unknown = st.dictionaries(st.text(min_size=1, max_size=8).map("x_".__add__), plain, max_size=2)


@st.composite
def node_documents(draw: st.DrawFn) -> NodeDocument:
    """Return any node's document."""
    rows = draw(st.integers(0, 4))
    column = st.lists(st.none() | numbers, min_size=rows, max_size=rows)
    return NodeDocument(
        node=draw(st.dictionaries(st.text(max_size=5), plain, max_size=3)),
        component=draw(st.none() | st.text(max_size=9)),
        run_id=draw(st.none() | st.text(max_size=9)),
        status=draw(st.sampled_from([None, "FINISHED", "KILLED"])),
        started=draw(st.none() | numbers),
        duration_sec=draw(st.none() | st.floats(0, 1e6)),
        summary=draw(st.dictionaries(st.text(max_size=9), numbers, max_size=4)),
        reports=draw(st.dictionaries(st.text(max_size=9), column, max_size=4)),
        extra=draw(unknown),
    )


documents = st.builds(
    PerfDocument, st.dictionaries(st.integers(0, 5), node_documents(), max_size=3), unknown
)


@given(documents)
def test_a_document_survives_its_round_trip(document: PerfDocument) -> None:
    """What is written is read back, unknown keys included."""
    assert PerfDocument.from_json(to_json(document.as_dict())) == document


def test_a_figure_that_is_not_finite_is_absent() -> None:
    """Every document that we write can be read again, also with overflowed figures."""
    node = NodeDocument(summary={"a": math.inf, "b": math.nan, "c": 1.0, "d": 10**400})
    written = to_json(PerfDocument({0: node}).as_dict())
    assert PerfDocument.from_json(written).nodes[0].summary.keys() == {"c", "d"}


@given(documents, documents, documents)
def test_merging_is_associative_and_commutative(
    a: PerfDocument, b: PerfDocument, c: PerfDocument
) -> None:
    """Nodes may arrive in any order and in any grouping; merging with nothing changes nothing."""
    assert a.merge(b).merge(c).as_dict() == a.merge(b.merge(c)).as_dict()
    assert a.merge(b).as_dict() == b.merge(a).as_dict()
    assert a.merge(PerfDocument()) == a
    assert a.merge(a) == a


def test_saved_files_are_whole_and_loadable(tmp_path: Path) -> None:
    """save() writes one schema line of JSON that another process can read."""
    document = PerfDocument({0: NodeDocument(node={"index": 0}, summary={"duration_sec": 1.0})})
    path = document.save(tmp_path / "node-0.json")
    data = json.loads(path.read_text())
    assert data["schema"] == SCHEMA
    assert list(data["nodes"]) == ["0"]
    assert PerfDocument.from_json(path.read_bytes()) == document
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["node-0.json"]


def test_an_unwritable_place_is_an_os_error(tmp_path: Path) -> None:
    """A folder that is not there is the caller's error to see."""
    with pytest.raises(OSError, match="nowhere"):
        PerfDocument().save(tmp_path / "nowhere" / "x.json")


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "null"])
def test_a_value_that_is_not_a_number_is_missing(literal: str, tmp_path: Path) -> None:
    """NaN, infinity and null load as missing values, and the document can be saved again."""
    ours = (
        '{"schema": "mlflow-perf/1", "nodes": {"0": {"started": %s, "duration_sec": %s, '
        '"summary": {"a": %s, "b": 1.0}, "reports": {"timestamp": [%s, 1.0]}}}}'
    )
    document = PerfDocument.from_json(ours.replace("%s", literal))
    again = PerfDocument.from_json(document.save(tmp_path / "d.json").read_bytes())
    for node in (document.nodes[0], again.nodes[0]):
        assert (node.started, node.duration_sec) == (None, None)
        assert node.summary == {"b": 1.0}
        assert node.reports == {"timestamp": [None, 1.0]}
    seed = '{"0": [{"timestamp": 1.0, "mem_percent": %s}, {"timestamp": 2.0, "mem_percent": 5.0}]}'
    summary = PerfDocument.from_json(seed.replace("%s", literal)).nodes[0].summary
    assert summary["max_t_mem_percent"] == 5.0


def test_a_figure_that_cannot_be_negative_is_absent() -> None:
    """A time or a memory below zero is missing; a growth or a figure of a user is not."""
    impossible = {"duration_sec": -5.0, "job_max_mem_mb": -300, "ops/load/total_ms": -1.0}
    possible = {"job_mem_growth_mb_per_min": -3.0, "mine": -4.0, "ops/credit/count": -2.0}
    node = {"duration_sec": -5.0, "summary": {**impossible, **possible}}
    read = NodeDocument.from_dict(node)
    assert (read.duration_sec, read.summary) == (None, possible)


def test_the_seeds_format_loads() -> None:
    """`{node: [report, …]}` becomes a document; its totals are differences, not since boot."""
    reports = [
        {"timestamp": 10.0 + i, "cpu_pct_per_cpu_avg": 50.0, "disk_io_read_mb": 900.0 + i}
        for i in range(3)
    ]
    document = PerfDocument.from_json(json.dumps({"0": reports, "1": reports}))
    assert sorted(document.nodes) == [0, 1]
    assert document.nodes[1].reports["disk_io_read_mb"] == [900.0, 901.0, 902.0]
    assert document.nodes[1].summary["total_disk_io_read_mb"] == 2.0
    assert document.nodes[0].started == 10.0


def test_to_frame_has_a_row_per_report_and_a_node_column() -> None:
    """The nodes' rows follow each other; a missing value is NaN."""
    document = PerfDocument(
        {
            1: NodeDocument(reports={"timestamp": [1.0, 2.0], "mem_percent": [5.0, None]}),
            0: NodeDocument(reports={"timestamp": [3.0]}),
            2: NodeDocument(),
        }
    )
    frame = document.to_frame()
    assert list(frame["node"]) == [0, 1, 1]
    assert list(frame["timestamp"]) == [3.0, 1.0, 2.0]
    assert frame["mem_percent"].isna().tolist() == [True, False, True]
    assert PerfDocument().to_frame().empty


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON document"),
        ("[]", "must be a JSON object"),
        ("{}", "has no 'schema'"),
        ('{"schema": "mlflow-perf/2", "nodes": {}}', "Upgrade mlflow-perf"),
        ('{"schema": 7}', "not a performance document"),
        ('{"schema": "mlflow-perf/1"}', "needs 'nodes'"),
        ('{"schema": "mlflow-perf/1", "nodes": {"a": {}}}', "node's index is 'a'"),
        ('{"schema": "mlflow-perf/1", "nodes": {"-1": {}}}', "index is '-1'"),
        ('{"schema": "mlflow-perf/1", "nodes": {"0": []}}', "Node 0 must be an object"),
        (
            '{"schema": "mlflow-perf/1", "nodes": {"0": {"summary": []}}}',
            "'summary' must be of type `object`, not `array`",
        ),
        (
            '{"schema": "mlflow-perf/1", "nodes": {"0": {"summary": {"a": "b"}}}}',
            "'summary.a' must be .*`float`, not `str`",
        ),
        (
            '{"schema": "mlflow-perf/1", "nodes": {"0": {"component": 1}}}',
            "'component' must be .*`str",
        ),
        (
            '{"schema": "mlflow-perf/1", "nodes": {"0": {"started": "x"}}}',
            "'started' must be .*`float",
        ),
        (
            '{"schema": "mlflow-perf/1", "nodes": {"0": {"reports": {"a": 1}}}}',
            "'reports.a' must be .*`array`",
        ),
        ('{"schema": "mlflow-perf/1", "nodes": {"0": {"reports": {"a": [1], "b": []}}}}', "length"),
        (
            '{"schema": "mlflow-perf/1", "nodes": {"0": {"reports": {"a": ["x"]}}}}',
            "'reports.a' must be .*`float",
        ),
        ("[" * 100_000, "not a JSON document"),
    ],
)
def test_bad_documents_say_what_is_wrong(text: str, message: str) -> None:
    """Whatever is not a document is refused with one sentence."""
    with pytest.raises(DocumentError, match=message):
        PerfDocument.from_json(text)


@pytest.mark.parametrize(
    ("nodes", "cause"),
    [
        ({0: ("signal SIGTERM", 9.0), 1: ("exit code 9", 9.006)}, "exit code 9, node 1"),
        ({0: ("signal SIGTERM", 9.0), 1: ("exit code 9", 12.0)}, "signal SIGTERM, node 0"),
        ({0: ("signal SIGTERM", 9.1), 1: ("signal SIGTERM", 9.0)}, "signal SIGTERM, node 1"),
        ({0: ("exit code 3", 9.1), 1: ("KeyError", 9.0)}, "KeyError, node 1"),
        ({0: (None, 3.0), 1: ("KeyError", 9.0)}, "KeyError, node 1"),
        ({0: (None, 3.0), 1: (None, 9.0)}, ""),
        ({0: ("rank 3 ended with exit code 1", 9.0), 1: ("KeyError", 9.1)}, "KeyError, node 1"),
        (dict.fromkeys((0, 1), ("rank 3 ended with signal 9", 9.0)), "rank 3 ended with signal 9"),
    ],
)
def test_the_cause_is_that_of_the_node_for_which_the_others_were_ended(
    nodes: dict[int, tuple[str | None, float]], cause: str
) -> None:
    """A launcher ends the other ranks of a failed node at the same moment as those elsewhere."""
    documents = {
        index: NodeDocument(started=100.0, duration_sec=sec, extra={"cause": why} if why else {})
        for index, (why, sec) in nodes.items()
    }
    assert PerfDocument(documents).cause == cause
