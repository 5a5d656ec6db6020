"""Rules of transfers in the document and as MLflow metrics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric

from mlflow_perf import NixlKVConnectorStats
from mlflow_perf.core.json_io import from_json, to_json
from mlflow_perf.model.sketch import Distribution
from mlflow_perf.recorders.transfers import summary_metrics


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
    """summary_metrics gives the thirteen keys below the connector's name; none without a record."""
    metrics = summary_metrics("nixl", _stats([(2_000_000, 1000, 2**20, 4)], failures=1))
    assert metrics == {
        "transfers/nixl/num_successful": 1, "transfers/nixl/avg_xfer_time_ms": 2000,
        "transfers/nixl/p90_xfer_time_ms": 2000, "transfers/nixl/avg_post_time_ms": 1,
        "transfers/nixl/p90_post_time_ms": 1, "transfers/nixl/avg_mb_per_transfer": 1,
        "transfers/nixl/throughput_mb_s": 0.5, "transfers/nixl/avg_num_descriptors": 4,
        "transfers/nixl/num_failed_transfers": 1, "transfers/nixl/num_failed_notifications": 0,
        "transfers/nixl/num_kv_expired_reqs": 0, "transfers/nixl/num_failed_handshakes": 0,
        "transfers/nixl/num_notifications_after_expiry": 0,
    }  # fmt: skip
    assert summary_metrics("nixl", NixlKVConnectorStats()) == {}


def test_figures_that_a_source_does_not_publish_are_absent() -> None:
    """They are absent, also after JSON and a sum; `reduce` has vLLM's keys with zeros."""
    published = NixlKVConnectorStats.from_distributions(
        {"transfer_duration": Distribution()}, {"num_failed_transfers": 3}
    )
    names = ("num_successful", "avg_xfer_time_ms", "p90_xfer_time_ms", "num_failed_transfers")
    expected = {f"transfers/nixl/{name}" for name in names}
    read = NixlKVConnectorStats(from_json(to_json(published.as_dict())))
    for stats in (published, read, NixlKVConnectorStats().aggregate(read)):
        assert stats.reduce().keys() == NixlKVConnectorStats().reduce().keys()
        assert summary_metrics("nixl", stats.clone_and_reset()).keys() == expected
    both = summary_metrics("nixl", _stats([(1, 1, 1, 1)]).aggregate(published))
    assert len(both) == 13, "recorded here, so known"


@given(st.text(max_size=300))
def test_any_name_becomes_a_key_that_mlflow_takes(name: str) -> None:
    """Whatever the connector's name, MLflow's own check of metric keys passes."""
    for key, value in summary_metrics(name, _stats([(1, 1, 1, 1)])).items():
        _validate_metric(key, value, 0, 0)  # type: ignore[no-untyped-call]  # of MLflow
