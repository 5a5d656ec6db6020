"""Rules of transfers in the document and as MLflow metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric

from mlflow_perf import NixlKVConnectorStats
from mlflow_perf.errors import DocumentError
from mlflow_perf.recorders.transfers import as_dict, from_dict, merge, summary_metrics


def _stats(
    made: list[tuple[float, float, float, float]], failures: int = 0
) -> NixlKVConnectorStats:
    stats = NixlKVConnectorStats()
    for xfer_us, post_us, size, descriptors in made:
        stats.record_figures((xfer_us / 1e6, post_us / 1e6, size, descriptors))
    for _ in range(failures):
        stats.record_failed_transfer()
    return stats


def test_metrics_have_the_contracts_keys() -> None:
    """summary_metrics gives the eleven keys below the connector's name; none without a record."""
    metrics = summary_metrics("nixl", _stats([(2_000_000, 1000, 2**20, 4)], failures=1))
    assert metrics == {
        "transfers/nixl/num_successful": 1, "transfers/nixl/avg_xfer_time_ms": 2000,
        "transfers/nixl/p90_xfer_time_ms": 2000, "transfers/nixl/avg_post_time_ms": 1,
        "transfers/nixl/p90_post_time_ms": 1, "transfers/nixl/avg_mb_per_transfer": 1,
        "transfers/nixl/throughput_mb_s": 0.5, "transfers/nixl/avg_num_descriptors": 4,
        "transfers/nixl/num_failed_transfers": 1, "transfers/nixl/num_failed_notifications": 0,
        "transfers/nixl/num_kv_expired_reqs": 0,
    }  # fmt: skip
    assert summary_metrics("nixl", NixlKVConnectorStats()) == {}


@given(st.text(max_size=300))
def test_any_name_becomes_a_key_that_mlflow_takes(name: str) -> None:
    """Whatever the connector's name, MLflow's own check of metric keys passes."""
    for key, value in summary_metrics(name, _stats([(1, 1, 1, 1)])).items():
        _validate_metric(key, value, 0, 0)  # type: ignore[no-untyped-call]  # of MLflow


def test_merge_of_documents() -> None:
    """Merge sums by name, keeps names of one side only, and changes neither side."""
    left, right = {"a": _stats([(1, 1, 1, 1)])}, {"a": _stats([(3, 1, 1, 1)]), "b": _stats([], 1)}
    merged = merge(left, right)
    assert {name: stats.num_successful_transfers for name, stats in merged.items()} == {
        "a": 2, "b": 0,
    }  # fmt: skip
    assert left["a"].num_successful_transfers == 1


def test_the_documents_block_comes_back() -> None:
    """as_dict and from_dict are inverse; anything but an object of objects is refused."""
    named = {"a": _stats([(1, 1, 1, 1)]), "b": _stats([], 1)}
    assert as_dict(from_dict(as_dict(named))) == as_dict(named)
    wrong: object
    for wrong in ([], {"a": 1}, None):
        with pytest.raises(DocumentError, match="object of objects"):
            from_dict(wrong)
