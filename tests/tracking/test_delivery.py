"""A delivery and the header that describes it in a journal."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.run_handle import RunHandle


def test_a_header_describes_all_but_the_document() -> None:
    """The delivery that is read from a header goes to the same run, with the same tags."""
    run = RunHandle("http://host", "train", "r1", own_run=True, experiment_id="7", has_page=True)
    delivery = Delivery(
        NodeDocument(component="train"), run, 3, "perf/x", "a_", tags={"mlflow_perf.status": "x"}
    )
    again = Delivery.from_header(delivery.header(), delivery.document)
    assert again == delivery


def test_a_header_of_an_older_program_is_read() -> None:
    """Fields that it did not write have their defaults, and unknown ones are left out."""
    old = {"index": 1, "tags": {}, "run_id": "r1", "colour": "blue"}
    found = Delivery.from_header(old, NodeDocument())
    assert (found.index, found.run.run_id, found.artifact_path) == (1, "r1", "perf")
    assert not found.run.has_page


@pytest.mark.parametrize(
    "wrong",
    [
        {"index": "1"}, {"index": -1}, {"index": True}, {"tags": []}, {"tags": {"a": 1}},
        {"tracking_uri": None}, {"artifact_path": "../x"}, {"artifact_path": "/x"},
        {"artifact_path": "a\\b"}, {"page": "yes"}, {"run_id": 1}, {"experiment_id": 7},
        {"run_name": []}, {"metrics_prefix": 1},
    ],
)  # fmt: skip
def test_a_header_with_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    """A journal may be hostile: no value has another type, and no path leaves its folder."""
    with pytest.raises(DocumentError, match="header is damaged"):
        Delivery.from_header({**Delivery().header(), **wrong}, NodeDocument())
