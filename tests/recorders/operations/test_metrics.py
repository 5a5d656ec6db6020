"""Rules of OperationMetrics, ProxyStore's documented ones first."""

from __future__ import annotations

import copy
import json
import logging
import math
import pickle
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf import MlflowPerfError, OperationMetrics, TimeStats
from mlflow_perf.errors import DocumentError, SettingError

record = st.tuples(
    st.sampled_from(["a", "b.c", "d e", "ü/../x"]),
    st.sampled_from([None, "k", 7, ("k", 1)]),
    st.integers(min_value=0, max_value=2**30),
)
records = st.lists(record, max_size=30)


def _recorder(made: list[tuple[str, Any, int]], **bounds: int) -> OperationMetrics:
    recorder = OperationMetrics(**bounds)
    for name, key, value in made:
        recorder.add_time(name, key, float(value))
        recorder.add_counter(name, key, value)
        recorder.add_attribute(name, key, value)
    return recorder


def _figures(recorder: OperationMetrics) -> dict[str, Any]:
    """Return the figures that do not depend on the order of the records."""
    data = recorder.as_dict(max_keys=None)
    parts = [data, *data.pop("keys", [])]
    for part in parts:
        for times in part.get("times", {}).values():
            del times["last_timestamp"], times["last_ms"]
        part.pop("attributes", None)
    parts[1:] = sorted(parts[1:], key=lambda part: json.dumps(part["key"]))
    return {"parts": parts}


class TestKeys:
    """What a key is."""

    def test_records_of_a_key_come_back(self) -> None:
        """Attributes, counters and times are kept under the key that they were recorded for."""
        recorder = OperationMetrics()
        recorder.add_attribute("size", "k", 5)
        recorder.add_counter("hits", "k", 2)
        recorder.add_counter("hits", "k", 3)
        recorder.add_time("get", "k", 4.0)
        metrics = recorder.get_metrics("k")
        assert metrics is not None
        assert (metrics.attributes, metrics.counters) == ({"size": 5}, {"hits": 5})
        assert metrics.times["get"].avg_time_ms == 4.0
        assert metrics.as_dict()["times"]["get"]["count"] == 1

    def test_missing_key_gives_none(self) -> None:
        """A key for which nothing was recorded has no metrics, not even the key None."""
        assert OperationMetrics().get_metrics("k") is None
        assert OperationMetrics().get_metrics(None) is None

    def test_list_of_keys_is_one_super_key(self) -> None:
        """A list is one key, the same as its tuple, and not one of its parts."""
        recorder = OperationMetrics()
        recorder.add_time("put_batch", ["a", "b"], 1.0)
        recorder.add_time("put_batch", ("a", "b"), 2.0)
        metrics = recorder.get_metrics(["a", "b"])
        assert metrics is not None
        assert metrics.times["put_batch"].count == 2
        assert recorder.get_metrics("a") is None
        assert recorder.get_metrics(["b", "a"]) is None

    def test_a_copy_comes_back(self) -> None:
        """Changing the result of get_metrics changes no record."""
        recorder = OperationMetrics()
        recorder.add_attribute("shape", "k", [1, 2])
        recorder.add_time("get", "k", 4.0)
        metrics = recorder.get_metrics("k")
        assert metrics is not None
        metrics.attributes["shape"].append(3)
        metrics.times["get"].add_time(9.0)
        again = recorder.get_metrics("k")
        assert again is not None
        assert again.attributes == {"shape": [1, 2]}
        assert again.times["get"].count == 1

    def test_named_tuples_are_keys(self) -> None:
        """A connector's key, a named tuple, is a key like any other."""
        key = namedtuple("FileKey", "filename")("f")
        recorder = OperationMetrics()
        recorder.add_time("get", key, 1.0)
        assert recorder.get_metrics(key) is not None

    @pytest.mark.parametrize("wrong", [{}, {1}, [[1]], ([],)])
    def test_unhashable_key_is_refused(self, wrong: object) -> None:
        """A key that cannot be hashed raises at the call; the message lists the allowed ones."""
        recorder = OperationMetrics()
        with pytest.raises(SettingError, match="hash"):
            recorder.add_time("get", wrong, 1.0)
        with pytest.raises(SettingError, match="hash"):
            recorder.time("get", wrong)
        assert recorder.is_empty()


class TestWrongInput:
    """What is refused at the call that is wrong."""

    @pytest.mark.parametrize(
        "wrong", [-0.5, math.nan, math.inf, "3", None, pytest.param(10**400, id="huge")]
    )
    def test_wrong_time(self, wrong: Any) -> None:
        """A time that is negative, not finite or no number raises, and nothing is recorded."""
        recorder = OperationMetrics()
        with pytest.raises(MlflowPerfError):
            recorder.add_time("x", None, wrong)
        assert recorder.is_empty()

    @pytest.mark.parametrize("wrong", [math.nan, -math.inf, "3", None])
    def test_wrong_increment(self, wrong: Any) -> None:
        """An increment that is not a finite number raises, and nothing is recorded."""
        recorder = OperationMetrics()
        with pytest.raises(MlflowPerfError):
            recorder.add_counter("x", None, wrong)
        assert recorder.is_empty()

    @pytest.mark.parametrize("wrong", ["", None, 3, b"x"])
    def test_wrong_name(self, wrong: Any) -> None:
        """A name that is no string, or empty, raises for each kind of record and for a timer."""
        recorder = OperationMetrics()
        for call in (recorder.add_time, recorder.add_counter, recorder.add_attribute):
            with pytest.raises(SettingError, match="name"):
                call(wrong, None, 1)
        with pytest.raises(SettingError, match="name"):
            recorder.time(wrong)

    @pytest.mark.parametrize("bounds", [{"max_keys": 0}, {"max_keys": 1.5}, {"max_names": -1}])
    def test_wrong_bound(self, bounds: Any) -> None:
        """A bound that is no whole number of at least one raises."""
        with pytest.raises(SettingError, match="whole number"):
            OperationMetrics(**bounds)


class TestSums:
    """Sums over keys, recorders and processes."""

    def test_aggregate_times_covers_all_keys(self) -> None:
        """aggregate_times gives one TimeStats per name, over all keys, with percentiles."""
        recorder = OperationMetrics()
        for number in range(1, 101):
            recorder.add_time("get", number % 7, float(number))
        (stats,) = recorder.aggregate_times().values()
        assert (stats.count, stats.avg_time_ms) == (100, 50.5)
        assert stats.percentile(90) == pytest.approx(90.1, rel=0.01)

    @given(records, records)
    def test_merging_is_as_if_recorded_in_one(self, a: Any, b: Any) -> None:
        """Merge gives exactly the sums of one recorder that got all the records."""
        merged = _recorder(a)
        merged.merge(_recorder(b))
        assert _figures(merged) == _figures(_recorder(a + b))

    @given(records, records, records)
    def test_merging_is_associative(self, a: Any, b: Any, c: Any) -> None:
        """(a + b) + c and a + (b + c) hold the same figures, and an empty recorder adds nothing."""
        left, tail, right = _recorder(a), _recorder(b), _recorder(a)
        left.merge(_recorder(b))
        left.merge(_recorder(c))
        tail.merge(_recorder(c))
        tail.merge(OperationMetrics())
        right.merge(tail)
        assert _figures(left) == _figures(right)

    def test_merging_with_itself_doubles(self) -> None:
        """A recorder merged into itself neither hangs nor loses count."""
        recorder = _recorder([("a", "k", 1)])
        recorder.merge(recorder)
        assert recorder.aggregate_times()["a"].count == 2

    @given(records, st.sampled_from([0, 1, None]))
    def test_strict_json_round_trip(self, made: Any, max_keys: int | None) -> None:
        """as_dict is strict JSON, and from_dict gives the same back, and the same metrics."""
        recorder = _recorder(made)
        data = json.loads(json.dumps(recorder.as_dict(max_keys=max_keys), allow_nan=False))
        again = OperationMetrics.from_dict(data)
        assert again.as_dict(max_keys=max_keys) == data
        assert again.summary_metrics() == pytest.approx(recorder.summary_metrics())

    @pytest.mark.parametrize(
        "data",
        [{"times": {"a": {}}}, {"times": []}, {"counters": {"a": "1"}}, {"keys": [{}]}, {"keys": 1},
         {"sketches": {"a": {}}}, {"counters": {"a": math.nan}}, {"keys": [{"key": [1]}]}],
    )  # fmt: skip
    def test_damaged_data_is_refused(self, data: Any) -> None:
        """What as_dict did not write raises DocumentError."""
        with pytest.raises(DocumentError):
            OperationMetrics.from_dict(data)

    def test_no_record_is_lost_between_threads(self) -> None:
        """Eight threads that record the same operation lose no record."""
        recorder = OperationMetrics()

        def work() -> None:
            for number in range(2000):
                recorder.add_time("x", number % 3, 1.0)
                recorder.add_counter("n", None, 1)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert recorder.aggregate_times()["x"].count == 16_000
        assert recorder.aggregate_counters() == {"n": 16_000}


class TestBounds:
    """Memory is bounded and no total lost."""

    def test_keys_beyond_the_bound_go_to_none(self) -> None:
        """With more keys than are kept apart, the sums are whole and the first keys stay."""
        recorder = OperationMetrics(max_keys=10)
        for number in range(1000):
            recorder.add_time("x", f"key {number}", 1.0)
            recorder.add_counter("n", f"key {number}", 2)
            recorder.add_attribute("size", f"key {number}", number)
        assert recorder.aggregate_times()["x"].count == 1000
        assert recorder.aggregate_counters()["n"] == 2000
        assert recorder.get_metrics("key 9") is not None
        assert recorder.get_metrics("key 10") is None
        rest = recorder.get_metrics(None)
        assert rest is not None
        assert (rest.times["x"].count, rest.attributes) == (990, {})

    def test_names_beyond_the_bound_go_to_other(self, caplog: pytest.LogCaptureFixture) -> None:
        """With more names than are kept apart, the further ones are summed up, with one warning."""
        recorder = OperationMetrics(max_names=3)
        with caplog.at_level(logging.WARNING):
            for number in range(100):
                recorder.add_time(f"step {number}", None, 1.0)
        assert recorder.aggregate_times()["other"].count == 97
        assert len(caplog.records) == 1


def test_public_statistics_add_up_with_those_of_keys() -> None:
    """The statistics that get_metrics gives for keys sum to those of aggregate_times."""
    recorder = _recorder([("a", "x", 1), ("a", "y", 5), ("a", None, 3)])
    parts = [recorder.get_metrics(key) for key in ("x", "y", None)]
    total = sum((part.times["a"] for part in parts if part), TimeStats())
    assert total.count == recorder.aggregate_times()["a"].count == 3
    assert total.max_time_ms == 5


@pytest.fixture
def proxy() -> Iterator[Any]:
    """Resolving a real proxy raises if its object has been evicted."""
    store = pytest.importorskip("proxystore.store")
    connectors = pytest.importorskip("proxystore.connectors.local")
    with store.Store("evicted", connectors.LocalConnector(), register=True) as made:
        proxy = made.proxy([1, 2], populate_target=False)
        made.evict(object.__getattribute__(proxy, "__proxy_factory__").key)
        yield proxy


@pytest.mark.parametrize("wrap", [lambda proxy: proxy, lambda p: [p], lambda p: (p, "a", (p,))])
def test_recording_for_a_proxy_does_not_resolve_it(proxy: Any, wrap: Callable[[Any], Any]) -> None:
    """Times, counters and attributes are recorded under the key of the proxy's object."""
    key, recorder = wrap(proxy), OperationMetrics()
    recorder.add_time("read", key, 2.0)
    with recorder.time("read", key):
        pass
    recorder.add_counter("bytes", key, 3)
    recorder.add_attribute("kind", key, "array")
    found = recorder.get_metrics(key)
    assert found is not None
    assert found.times["read"].count == 2
    assert found.counters == {"bytes": 3}
    assert found.attributes == {"kind": "array"}


_AGAIN = [lambda r: pickle.loads(pickle.dumps(r)), copy.copy, copy.deepcopy]


@pytest.mark.parametrize("again", _AGAIN)
def test_a_recorder_goes_to_another_process_whole(again: Any) -> None:
    """As ProxyStore's, it is pickled with its keys; a copy has a life of its own."""
    recorder = _recorder([("a", "k", 3), ("a", ("k", 1), 700), ("b", None, 5)], max_keys=2)
    sent = again(recorder)
    assert sent.as_dict(max_keys=None) == recorder.as_dict(max_keys=None)
    assert sent.get_metrics(("k", 1)) == recorder.get_metrics(("k", 1))
    sent.add_time("a", "beyond the bound", 1.0)
    assert sent.get_metrics("beyond the bound") is None
    assert sent.aggregate_times()["a"].count == recorder.aggregate_times()["a"].count + 1 == 3


def test_no_name_and_no_value_holds_a_secret() -> None:
    """Passwords and signatures of addresses are hidden in names, keys and attributes."""
    link, plain = "https://host/a?sig=secret", "https://host/a?…"
    metrics = OperationMetrics()
    for i in range(3):
        metrics.add_time(f"get https://host/a?sig=secret{i}", link, 1.0)
    metrics.add_counter("s3://me:secret@bucket", None, 1)
    metrics.add_attribute("where", None, {"data": [link, 5]})
    metrics.add_attribute(link, None, "http://me:secret@host")
    assert metrics.aggregate_times()[f"get {plain}"].count == 3
    data = metrics.as_dict()
    assert data["attributes"] == {"where": {"data": [plain, 5]}, plain: "http://me:***@host"}
    assert "secret" not in repr(data)
    assert OperationMetrics.from_dict(data).as_dict() == data
