"""Rules of gathering ProxyStore's metrics: exact over all stores and processes of the job."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_perf import OperationMetrics
from mlflow_perf.integrations import proxystore as gather
from mlflow_perf.recorders import current, spool
from mlflow_perf.recorders.collect import collect_operations

proxystore_store = pytest.importorskip("proxystore.store")
from proxystore.connectors.file import FileConnector  # noqa: E402 - after the check that it is there
from proxystore.connectors.local import LocalConnector  # noqa: E402
from proxystore.connectors.redis import RedisConnector  # noqa: E402
from proxystore.proxy import Proxy  # noqa: E402
from proxystore.store import Store  # noqa: E402
from proxystore.store.metrics import StoreMetrics  # noqa: E402
from proxystore.store.utils import resolve_async  # noqa: E402

Connect = Callable[[], Any]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[tuple[OperationMetrics, Path]]:
    """A session that gathers: its recorder and its spool folder."""
    # One that an earlier test has started has that test's environment.
    forkserver._forkserver._stop()  # type: ignore[attr-defined] # there is no public way
    folder = spool.create(tmp_path)
    recorder = OperationMetrics()
    current.activate(recorder, folder=folder)
    gather.install()
    yield recorder, folder
    gather.uninstall()
    current.deactivate()


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real Redis server of its own on a free loopback port."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
    folder = tmp_path_factory.mktemp("redis")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder) as server:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield port
        server.terminate()


@pytest.fixture(params=["local", "file", "redis"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """A function that makes a connector, for each kind."""
    if request.param == "local":
        return LocalConnector
    if request.param == "file":
        return lambda: FileConnector(str(tmp_path / "store"))
    port = request.getfixturevalue("redis_port")
    return lambda: RedisConnector("127.0.0.1", port)


def _counts(recorder: OperationMetrics) -> dict[str, int]:
    return {name: stats.count for name, stats in recorder.aggregate_times().items()}


def _use(store: Any) -> None:
    """Do one of each: put, get twice (the second cached), exists, evict, batches, proxies."""
    key = store.put([1, 2, 3])
    store.get(key)
    store.get(key)
    store.exists(key)
    store.evict(key)
    for proxy in store.proxy_batch(["a", "b"], populate_target=False):
        assert proxy in ("a", "b")
    store.put_batch([1, 2])
    owned = store.owned_proxy({"k": 1}, populate_target=False)
    assert owned["k"] == 1
    locked = store.locked_proxy("x", populate_target=False)
    assert locked.unlock() == "x"
    later = store.proxy("y", populate_target=False)
    resolve_async(later)
    assert later == "y"


def _expected(store: Any) -> dict[str, int]:
    """Sum up ProxyStore's own metrics of one store."""
    return {name: stats.count for name, stats in store.metrics.aggregate_times().items()}


def test_every_operation_of_every_connector(session: Any, connect: Connect) -> None:
    """The session has each operation exactly as often as ProxyStore's own metrics."""
    recorder, _ = session
    with Store("every-operation", connect(), metrics=True, register=True) as store:
        _use(store)
        expected = _expected(store)
    assert _counts(recorder) == expected
    assert expected["store.get"] >= 6
    assert expected["factory.call"] == 5
    counters = recorder.aggregate_counters()
    assert counters["store.get.cache_hits"] == 1
    assert counters["store.get.cache_misses"] == expected["store.get"] - 1


def test_sizes_are_summed_up(session: Any) -> None:
    """Sizes of objects, attributes of single keys in ProxyStore, give the bytes put in all."""
    recorder, _ = session
    with Store("sizes", LocalConnector(), metrics=True) as store:
        keys = [store.put(b"x" * size, serializer=bytes) for size in (100, 1000)]
        assert store.metrics is not None
        sizes = [store.metrics.get_metrics(key) for key in keys]
    assert [size.attributes["store.put.object_size"] for size in sizes if size] == [100, 1000]
    assert recorder.aggregate_counters()["store.put.object_size"] == 1100


def test_times_of_the_factory_are_milliseconds(session: Any) -> None:
    """factory.resolve, which ProxyStore gives in nanoseconds, is as long as the get inside it."""
    recorder, _ = session
    with Store("factory", LocalConnector(), metrics=True, register=True) as store:
        assert store.proxy("x", populate_target=False) == "x"
        assert store.metrics is not None
        raw = store.metrics.aggregate_times()["factory.resolve"].last_time_ms
    times = recorder.aggregate_times()
    inside, around = times["store.get"].last_time_ms, times["factory.resolve"].last_time_ms
    assert inside <= around <= times["factory.call"].last_time_ms < inside + 1000
    assert raw / around == pytest.approx(1e6)


def test_times_are_left_alone_once_proxystore_mends_them(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ProxyStore whose factory reads elapsed_ms gives milliseconds, which are not divided."""
    from proxystore.store import factory

    def resolve(self: Any) -> Any:
        store = self.get_store()
        timer = type("T", (), {"elapsed_ms": 5.0})()
        store.metrics.add_time("factory.resolve", self.key, timer.elapsed_ms)
        return store.get(self.key)

    monkeypatch.setattr(factory.StoreFactory, "resolve", resolve)
    gather._units_per_ms.cache_clear()
    recorder, _ = session
    with Store("mended", LocalConnector(), metrics=True, register=True) as store:
        assert store.proxy("x", populate_target=False) == "x"
    gather._units_per_ms.cache_clear()
    assert recorder.aggregate_times()["factory.resolve"].last_time_ms == 5.0


def test_all_times_of_an_old_proxystore_are_milliseconds() -> None:
    """ProxyStore up to 0.6.3 takes nanoseconds, as its parameter says; the session has ms."""

    class StoreMetrics:
        def add_attribute(self, name: str, key: Any, value: Any) -> None: ...
        def add_counter(self, name: str, key: Any, value: int) -> None: ...
        def add_time(self, name: str, key: Any, time_ns: int) -> None: ...

    module: Any = SimpleNamespace(StoreMetrics=StoreMetrics)
    recorder = OperationMetrics()
    current.activate(recorder, folder=None)
    gather.follow(module)
    StoreMetrics().add_time("store.get", "k", 5_000_000)
    StoreMetrics().add_time("factory.resolve", "k", time_ns=6_000_000)
    gather._originals.clear()
    current.deactivate()
    times = recorder.aggregate_times()
    assert times["store.get"].last_time_ms == 5
    assert times["factory.resolve"].last_time_ms == 6


def test_metrics_of_a_store_take_keywords_as_before(session: Any) -> None:
    """A job that names the parameters of StoreMetrics is served as without us."""
    recorder, _ = session
    with Store("keywords", LocalConnector(), metrics=True) as store:
        assert store.metrics is not None
        store.metrics.add_time("mine", key=("k",), time_ms=3.0)
        store.metrics.add_counter(name="rows", key=("k",), value=2)
    assert recorder.aggregate_times()["mine"].last_time_ms == 3.0
    assert recorder.aggregate_counters()["rows"] == 2


def test_store_without_metrics_is_not_gathered(session: Any) -> None:
    """A store that was made without metrics records nothing."""
    recorder, _ = session
    with Store("without", LocalConnector()) as store:
        store.get(store.put(1))
    assert recorder.is_empty()


def test_store_made_before_the_session(tmp_path: Path) -> None:
    """A store that was there before counts from the session's start to its end."""
    with Store("before", LocalConnector(), metrics=True) as store:
        store.put(1)
        recorder = OperationMetrics()
        current.activate(recorder, folder=None)
        gather.install()
        store.put(2)
        gather.uninstall()
        current.deactivate()
        store.put(3)
    assert _counts(recorder)["store.put"] == 1


def test_closing_twice_harms_nothing(session: Any) -> None:
    """A store that is closed twice keeps its figures, and the session goes on."""
    recorder, _ = session
    store = Store("twice", LocalConnector(), metrics=True, register=True)
    store.put(1)
    store.close()
    store.close()
    assert _counts(recorder)["store.put"] == 1


def test_a_fault_of_ours_does_not_reach_the_store(
    session: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When recording fails, the store works on, ProxyStore's own metrics too, with one warning."""

    def fail(*args: Any) -> None:
        raise RuntimeError("broken")

    recorder, _ = session
    gather._unrecorded.clear()
    monkeypatch.setattr(recorder, "add_time", fail)
    with Store("fault", LocalConnector(), metrics=True) as store:
        for _ in range(3):
            store.put(1)
        assert _expected(store)["store.put"] == 3
    assert len([r for r in caplog.records if "'store.put'" in repr(r.args)]) == 1


def test_uninstall_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """After uninstall the methods, the import system and PYTHONPATH are those from before."""
    monkeypatch.setenv("PYTHONPATH", "/mine")
    before = (StoreMetrics.add_time, StoreMetrics.add_counter, list(sys.meta_path))
    gather.install()
    gather.install()
    assert StoreMetrics.add_time is not before[0]
    assert os.environ["PYTHONPATH"].endswith(f"{os.pathsep}/mine")
    gather.uninstall()
    gather.uninstall()
    assert (StoreMetrics.add_time, StoreMetrics.add_counter, list(sys.meta_path)) == before
    assert os.environ["PYTHONPATH"] == "/mine"


def test_uninstall_leaves_what_the_job_put_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that changes PYTHONPATH while it is watched finds its change afterwards."""
    monkeypatch.setenv("PYTHONPATH", "/mine")
    gather.install()
    os.environ["PYTHONPATH"] += f"{os.pathsep}/later"
    gather.uninstall()
    assert os.environ["PYTHONPATH"] == f"/mine{os.pathsep}/later"
    gather.install()
    gather.uninstall()
    assert os.environ["PYTHONPATH"] == f"/mine{os.pathsep}/later"


def _resolve(proxy: Any) -> int:
    assert isinstance(proxy, Proxy)
    return len(proxy)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_proxies_resolved_in_workers(session: Any, tmp_path: Path, method: str) -> None:
    """Proxies that workers resolve count, though the pool's workers are killed in the end."""
    recorder, folder = session
    connector = FileConnector(str(tmp_path / "store"))
    with Store("workers", connector, metrics=True, register=True) as store:
        proxies = [store.proxy([0] * n, populate_target=False) for n in range(10)]
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(_resolve, proxies, chunksize=1) == list(range(10))
    collect_operations(folder, recorder)
    counts = _counts(recorder)
    assert (counts["store.put"], counts["store.proxy"]) == (10, 10)
    assert (counts["factory.resolve"], counts["store.get"]) == (10, 10)


def _run(script: str, folder: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, str(path)], env=os.environ | extra, capture_output=True, text=True,
        check=True,
    )  # fmt: skip


def test_program_that_knows_nothing_of_us(session: Any, tmp_path: Path) -> None:
    """A program below the session that never names mlflow_perf is gathered all the same."""
    recorder, folder = session
    script = """
        import os
        from proxystore.connectors.local import LocalConnector
        from proxystore.store import Store

        Store("program", LocalConnector(), metrics=True).put(1)
        os._exit(0)
    """
    assert _run(script, tmp_path).stderr == ""
    collect_operations(folder, recorder)
    assert _counts(recorder)["store.put"] == 1
