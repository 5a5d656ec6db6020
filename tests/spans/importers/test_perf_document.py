"""Our own performance documents as spans."""

from __future__ import annotations

import json
from pathlib import Path

from mlflow_perf import spans


def test_a_second_import_updates_the_attributes_of_a_span(tmp_path: Path) -> None:
    """A source that is imported again once its job has ended does not say that it still runs."""
    path = tmp_path / "node-0.json"
    for status, more in (("RUNNING", {}), ("FINISHED", {"duration_sec": 2.0})):
        node = {"started": 1795000000.0, "component": "fit", "status": status, **more}
        path.write_text(json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": node}}), "utf-8")
        spans.import_sources(path, tmp_path / "db")
    query = "SELECT json_extract(attributes, '$.status') AS status FROM interval WHERE type = ?"
    assert spans.sql(tmp_path / "db", query, ["mlflow_perf.node"]) == [{"status": "FINISHED"}]


def test_counters_and_transfers_of_a_document_are_imported(tmp_path: Path) -> None:
    """A counter is a figure of its node; the size of a transfer is its attribute."""
    node = {
        "started": 1795000000.0,
        "duration_sec": 2.0,
        "summary": {"transfers/nixl/num_successful": 3.0, "transfers/nixl/throughput_mb_s": 9.5},
        "operations": {"counters": {"rows": 7, "beyond floats": 10**400}},
        "transfers": {"nixl": {"transfer_duration": {"count": 3}, "num_failed_transfers": 1}},
    }
    path = tmp_path / "node-0.json"
    path.write_text(json.dumps({"schema": "mlflow-perf/1", "nodes": {"0": node}}), "utf-8")
    spans.import_sources(path, tmp_path / "db")
    counted = spans.sql(tmp_path / "db", "SELECT name, time, value FROM metric")
    assert counted == [{"name": "ops/rows/count", "time": 1795000002.0, "value": 7.0}]
    (row,) = spans.sql(
        tmp_path / "db", "SELECT attributes FROM interval WHERE type = 'mlflow_perf.transfer'"
    )
    assert json.loads(row["attributes"]) == {
        "num_successful": 3.0, "throughput_mb_s": 9.5, "num_failed_transfers": 1,
    }  # fmt: skip
