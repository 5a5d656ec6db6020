"""Rules of the statistics of transfers: vLLM's figures, in bounded memory."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf import KVConnectorStats, NixlKVConnectorStats
from mlflow_perf.errors import DocumentError, SettingError
from mlflow_perf.model.sketch import Distribution

transfer = st.tuples(
    st.integers(min_value=1, max_value=10**8),
    st.integers(min_value=0, max_value=10**6),
    st.integers(min_value=0, max_value=2**40),
    st.integers(min_value=1, max_value=10**5),
)
transfers = st.lists(transfer, max_size=40)

RECORDERS = {
    "record_failed_transfer": "num_failed_transfers",
    "record_failed_notification": "num_failed_notifications",
    "record_failed_handshake": "num_failed_handshakes",
    "record_kv_expired_req": "num_kv_expired_reqs",
    "record_notification_after_expiry": "num_notifications_after_expiry",
}
"""vLLM's recorders of events, and the list of its `data` that each appends to."""


def _telemetry(made: tuple[int, int, int, int]) -> Any:
    names = ("xferDuration", "postDuration", "totalBytes", "descCount")
    return SimpleNamespace(**dict(zip(names, made, strict=True)))


def _stats(made: list[tuple[int, int, int, int]], failures: int = 0) -> NixlKVConnectorStats:
    stats = NixlKVConnectorStats()
    for one in made:
        stats.record_transfer(_telemetry(one))
    for _ in range(failures):
        stats.record_failed_transfer()
    return stats


def _vllm(made: list[tuple[int, int, int, int]]) -> dict[str, float]:
    """Compute vLLM's figures from the whole lists, by the definitions in its documentation."""
    xfer, post, size, descriptors = np.array(made, dtype=float).T
    return {
        "Num successful transfers": len(made),
        "Avg xfer time (ms)": xfer.mean() / 1e3,
        "P90 xfer time (ms)": np.percentile(xfer, 90) / 1e3,
        "Avg post time (ms)": post.mean() / 1e3,
        "P90 post time (ms)": np.percentile(post, 90) / 1e3,
        "Avg MB per transfer": size.mean() / 2**20,
        "Throughput (MB/s)": (size.sum() / 2**20) / (xfer.sum() / 1e6),
        "Avg number of descriptors": descriptors.mean(),
        "Num failed transfers": 0,
        "Num KV expired reqs": 0,
        "Num notifs after expiry": 0,
    }


@given(st.lists(transfer, min_size=1, max_size=60))
def test_figures_are_vllms(made: Any) -> None:
    """Reduce gives vLLM's keys, and its figures rounded as there."""
    reduced = _stats(made).reduce()
    expected = _vllm(made)
    assert list(reduced) == list(expected)
    for key, value in expected.items():
        assert reduced[key] == pytest.approx(value, rel=1e-9, abs=0.051 if "desc" in key else 6e-4)


def test_without_a_success_only_failures_are_not_zero() -> None:
    """Without a successful transfer every figure is 0 but the counts of what failed."""
    assert set(_stats([]).reduce().values()) == {0}
    stats = _stats([], failures=2)
    stats.record_failed_handshake()
    stats.record_failed_notification()
    stats.record_kv_expired_req()
    stats.record_notification_after_expiry()
    stats.record_notification_after_expiry()
    assert {key: value for key, value in stats.reduce().items() if value} == {
        "Num failed transfers": 4, "Num KV expired reqs": 1, "Num notifs after expiry": 2,
    }  # fmt: skip
    assert stats.figures()["num_failed_transfers"] == 2


def test_no_telemetry_records_nothing() -> None:
    """As in vLLM, a transfer without telemetry of its agent is left out."""
    stats = NixlKVConnectorStats()
    stats.record_transfer(None)
    assert stats.is_empty()


@pytest.mark.parametrize("record", RECORDERS)
def test_only_failures_is_not_empty(record: str) -> None:
    """Statistics that hold only a failure are not empty, so that it is not thrown away."""
    stats = NixlKVConnectorStats()
    assert stats.is_empty()
    getattr(stats, record)()
    assert not stats.is_empty()
    assert stats.num_successful_transfers == 0
    stats.reset()
    assert stats.is_empty()


def test_clone_and_reset_hands_over() -> None:
    """The clone has everything, the original nothing, and they share nothing."""
    stats = _stats([(1000, 10, 2**20, 4)], failures=1)
    clone = stats.clone_and_reset()
    assert stats.is_empty()
    stats.record_failed_transfer()
    assert clone.num_successful_transfers == 1
    assert clone.figures()["num_failed_transfers"] == 1


def test_record_is_the_interface_of_a_connector() -> None:
    """The class is a KVConnectorStats; connectors implement that class's own methods."""
    assert isinstance(NixlKVConnectorStats(), KVConnectorStats)
    base = KVConnectorStats(data={"a": [1]})
    assert base.to_dict() == base.data == {"a": [1]}
    for call in (base.reset, base.reduce, base.is_empty, lambda: base.aggregate(base)):
        with pytest.raises(NotImplementedError):
            call()


@given(transfers, transfers)
def test_aggregate_is_as_if_recorded_in_one(a: Any, b: Any) -> None:
    """Aggregated statistics have the figures of all transfers together."""
    stats = _stats(a, failures=1)
    assert stats.aggregate(_stats(b, failures=2)) is stats
    assert stats.figures() == pytest.approx(_stats(a + b, failures=3).figures())


def test_many_transfers_take_little_memory_and_stay_within_one_percent() -> None:
    """Far beyond the exact samples, P90 is within 1% and the memory does not grow."""
    rng = np.random.default_rng(7)
    made = [(int(x), int(x) // 9, 2**20, 8) for x in rng.lognormal(9, 1, 20_000)]
    stats = _stats(made)
    reduced, expected = stats.reduce(), _vllm(made)
    for key, value in expected.items():
        assert reduced[key] == pytest.approx(value, rel=0.01)
    assert len(json.dumps(stats.as_dict())) < 50_000
    assert len(pickle.dumps(stats)) < 50_000
    assert max(map(len, stats._lists.values())) <= 1000


@given(transfers, st.integers(min_value=0, max_value=2), st.sampled_from([1, 40]))
def test_round_trip(made: Any, failures: int, times: int) -> None:
    """Statistics are the same after strict JSON, through the constructor."""
    stats = _stats(made * times, failures)
    data = json.loads(json.dumps(stats.as_dict(), allow_nan=False))
    assert NixlKVConnectorStats(data).as_dict() == stats.as_dict()


@pytest.mark.parametrize(
    "again", [lambda s: pickle.loads(pickle.dumps(s)), copy.copy, copy.deepcopy]
)
def test_a_worker_sends_them_as_they_are(again: Any) -> None:
    """As vLLM's, they are pickled on the way to the scheduler; a copy has a life of its own."""
    stats = _stats([(2_000_000, 1_000, 2**21, 8)] * 1_200, failures=2)
    sent = again(stats)
    assert sent.as_dict() == stats.as_dict()
    sent.record_failed_transfer()
    assert sent.as_dict() != stats.as_dict()


def _vllms_data(**some: Any) -> dict[str, Any]:
    """Return the `data` of vLLM 0.33.0's class."""
    names = (
        "transfer_duration", "post_duration", "bytes_transferred", "num_descriptors",
        "num_failed_transfers", "num_failed_notifications", "num_failed_handshakes",
        "num_kv_expired_reqs", "num_notifications_after_expiry",
    )  # fmt: skip
    return {name: some.get(name, []) for name in names}


def test_vllms_own_data_is_taken() -> None:
    """What vLLM's class sends between processes, lists by its names, can be taken in."""
    data = _vllms_data(
        transfer_duration=[0.5, 1.5], post_duration=[0.1, 0.1], bytes_transferred=[2**20, 2**21],
        num_descriptors=[1, 3], num_failed_transfers=[1, 1], num_kv_expired_reqs=[1],
        num_failed_handshakes=[1],
    )  # fmt: skip
    vllms: Any = SimpleNamespace(data=data)
    stats = NixlKVConnectorStats().aggregate(vllms)
    assert stats.reduce()["Throughput (MB/s)"] == 1.5
    assert stats.reduce()["Num failed transfers"] == 3
    assert stats.figures()["num_failed_transfers"] == 2
    assert stats.figures()["num_kv_expired_reqs"] == 1
    assert stats.to_dict() == stats.data == data
    assert data["num_failed_transfers"] == [1, 1]


@pytest.mark.parametrize("record", RECORDERS)
def test_one_event_of_vllms_is_not_lost(record: str) -> None:
    """Data of vLLM's that holds a single event is not empty, and keeps it in either direction."""
    vllms: Any = SimpleNamespace(data=_vllms_data(**{RECORDERS[record]: [1]}))
    stats = NixlKVConnectorStats().aggregate(vllms)
    assert not stats.is_empty()
    own = NixlKVConnectorStats()
    getattr(own, record)()
    assert own.data == stats.data == vllms.data


def test_data_is_the_record_itself() -> None:
    """As in vLLM, `data` can be set and appended to, and equal data are equal statistics."""
    stats = NixlKVConnectorStats(data={})
    stats.data["transfer_duration"].append(1.0)
    assert not stats.is_empty()
    assert stats.num_successful_transfers == 1
    stats.data = _vllms_data(num_failed_handshakes=[1])
    assert stats == NixlKVConnectorStats(_vllms_data(num_failed_handshakes=[1]))
    assert dataclasses.asdict(stats) == {"data": _vllms_data(num_failed_handshakes=[1])}


def test_data_of_many_transfers_has_them_all() -> None:
    """Beyond the bound the lists are still as long, each value within 2%, and the sums exact."""
    rng = np.random.default_rng(5)
    made = [(int(x), 9, int(x) * 7, 8) for x in rng.lognormal(9, 1, 5_000)]
    stats = _stats(made, failures=1_500)
    data, (xfer, _, size, _) = stats.data, np.array(made, dtype=float).T
    assert len(data["num_failed_transfers"]) == 1_500
    assert sum(data["transfer_duration"]) == pytest.approx(xfer.sum() / 1e6)
    assert sum(data["bytes_transferred"]) == pytest.approx(size.sum())
    ordered = np.sort(data["transfer_duration"])
    assert ordered == pytest.approx(np.sort(xfer) / 1e6, rel=0.021)


def test_names_that_are_not_known_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Figures of a later vLLM are left out with a warning that names them."""
    later: Any = SimpleNamespace(data=_vllms_data() | {"num_of_tomorrow": [1]})
    assert NixlKVConnectorStats().aggregate(later).is_empty()
    assert "num_of_tomorrow" in caplog.text


@pytest.mark.parametrize(
    "data",
    [{"transfer_duration": [-1]}, {"transfer_duration": ["x"]}, {"num_failed_transfers": -1},
     {"num_failed_transfers": "1"}, {"transfer_duration": {"count": 1}}, {"post_duration": 3}],
)  # fmt: skip
def test_damaged_data_is_refused(data: Any) -> None:
    """Data that is neither ours nor vLLM's raises DocumentError."""
    with pytest.raises(DocumentError):
        NixlKVConnectorStats(data)


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "x", None])
@pytest.mark.parametrize("attribute", ["xferDuration", "postDuration", "totalBytes", "descCount"])
def test_wrong_telemetry_is_refused(attribute: str, wrong: Any) -> None:
    """A figure that cannot be raises at the call, names itself, and records nothing."""
    telemetry = _telemetry((1, 1, 1, 1))
    setattr(telemetry, attribute, wrong)
    stats = NixlKVConnectorStats()
    with pytest.raises(SettingError, match=attribute):
        stats.record_transfer(telemetry)
    assert stats.is_empty()


def test_aggregate_refuses_what_has_no_statistics() -> None:
    """An object without statistics raises, and the message says what to give."""
    with pytest.raises(DocumentError, match="NixlKVConnectorStats"):
        NixlKVConnectorStats().aggregate(object())  # type: ignore[arg-type]


def test_statistics_of_someone_elses_histogram() -> None:
    """Distributions that were counted elsewhere give the same figures."""
    xfer, size = Distribution(), Distribution()
    xfer.add_bucket(0.5, 4, 2.0)
    size.add_bucket(2**20, 4, 4 * 2**20)
    stats = NixlKVConnectorStats.from_distributions(
        {"transfer_duration": xfer, "bytes_transferred": size}, {"num_failed_transfers": 3}
    )
    assert stats.num_successful_transfers == 4
    assert stats.figures()["throughput_mb_s"] == 2
    assert stats.figures()["num_failed_transfers"] == 3
