"""The file for speedscope, of one node and of several."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from tests.reports.html_browser import npm_file
from tests.reports.test_flame import make_node

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.reports.speedscope import join_speedscope, save_speedscope


def test_each_node_with_a_profile_has_a_file(tmp_path: Path) -> None:
    """`profile-<n>.speedscope.json` beside the node's document; none without samples."""
    save_speedscope(PerfDocument({0: NodeDocument(), 3: make_node(3)}), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["profile-3.speedscope.json"]
    data = json.loads((tmp_path / "profile-3.speedscope.json").read_text())
    assert data["profiles"][0]["name"] == "train, node 3: wall time"


def test_several_nodes_share_one_file() -> None:
    """Each node's profiles follow, with frames of their own."""
    data = join_speedscope([make_node(0), make_node(1)])
    assert data is not None
    assert len(data["profiles"]) == 4
    count = len(data["shared"]["frames"])
    assert all(i < count for p in data["profiles"] for stack in p["samples"] for i in stack)
    assert join_speedscope([NodeDocument()]) is None


@pytest.mark.e2e
def test_the_file_is_valid_by_the_schema_that_speedscope_publishes(tmp_path: Path) -> None:
    """The schema in its npm package, in the version of its web page."""
    published = npm_file(tmp_path, "speedscope@1.25.0", "dist/release/file-format-schema.json")
    schema = json.loads(published)
    for nodes in ([make_node(0)], [make_node(0), make_node(1)]):
        data = json.loads(json.dumps(join_speedscope(nodes)))
        jsonschema.validate(data, schema)
    data["profiles"][0]["unit"] = "hours"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)
