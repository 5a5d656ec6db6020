"""Rules of reading endpoints: real servers of others, and endpoints that misbehave."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import socket
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlflow_perf.errors import SettingError
from mlflow_perf.integrations.prometheus import ScrapeReader, _fetch_families, fetch, scrape_readers
from mlflow_perf.readers import Reader
from mlflow_perf.recorders.transfers import summary_metrics
from mlflow_perf.session import run_sources

prometheus_client = pytest.importorskip("prometheus_client")
parser = pytest.importorskip("prometheus_client.parser")

FAST = 0.02
Serve = Callable[[Callable[[Any], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A function that serves GET by a handler of the test's, and returns the address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(answer: Callable[[Any], None]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(OSError):
                    answer(self)

            def log_message(self, *args: object) -> None:
                """Keep the test's output clean."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/metrics"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def _text(body: str) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        content = body.encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain; version=0.0.4")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def _until(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for the effect of a thread; fail if it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def _report(reader: ScrapeReader) -> dict[str, float]:
    report: dict[str, float] = {}
    reader.read(report)
    return report


@pytest.fixture
def vllm() -> Iterator[tuple[str, Any]]:
    """A real server of the official client, with the metrics of vLLM's NIXL connector."""
    registry = prometheus_client.CollectorRegistry()
    labels = {"labelnames": ["model_name", "engine"], "registry": registry}
    made: dict[str, Any] = {}
    for name, buckets in (
        ("xfer_time_seconds", [0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.5, 1]),
        ("post_time_seconds", [0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1]),
        ("bytes_transferred", [2 ** (10 + n) for n in range(1, 25, 2)]),
        ("num_descriptors", [10, 20, 30, 50, 75, 100, 200, 400]),
    ):
        made[name] = prometheus_client.Histogram(
            f"vllm:nixl_{name}", "About NIXL.", buckets=buckets, **labels
        ).labels("a/model", "0")
    for name in ("num_failed_transfers", "num_failed_notifications", "num_kv_expired_reqs"):
        made[name] = prometheus_client.Counter(f"vllm:nixl_{name}", "About NIXL.", **labels).labels(
            "a/model", "0"
        )
    made["running"] = prometheus_client.Gauge(
        "vllm:num_requests_running", "Running.", **labels
    ).labels("a/model", "0")
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics", made
    server.shutdown()
    server.server_close()
    thread.join()


def _transfer(made: dict[str, Any], count: int) -> None:
    for _ in range(count):
        made["xfer_time_seconds"].observe(0.02)
        made["post_time_seconds"].observe(0.002)
        made["bytes_transferred"].observe(2**21)
        made["num_descriptors"].observe(16)


@pytest.mark.e2e
def test_vllms_transfers(vllm: Any) -> None:
    """Transfers of the job, not those before it, arrive as transfers with the contract's keys."""
    url, made = vllm
    _transfer(made, 1000)
    made["num_failed_transfers"].inc(5)
    made["running"].set(3)
    reader = ScrapeReader(url, interval=FAST)
    reader.begin()
    assert isinstance(reader, Reader)
    _until(lambda: "scrape/vllm_num_requests_running" in _report(reader))
    _transfer(made, 10)
    made["num_failed_transfers"].inc(2)
    made["num_kv_expired_reqs"].inc()
    reader.close()
    metrics = summary_metrics("nixl", reader.transfers())
    assert metrics["transfers/nixl/num_successful"] == 10
    assert metrics["transfers/nixl/avg_xfer_time_ms"] == pytest.approx(20)
    assert 10 <= metrics["transfers/nixl/p90_xfer_time_ms"] <= 25
    assert metrics["transfers/nixl/avg_mb_per_transfer"] == pytest.approx(2)
    assert metrics["transfers/nixl/throughput_mb_s"] == pytest.approx(100)
    assert metrics["transfers/nixl/avg_num_descriptors"] == pytest.approx(16)
    assert metrics["transfers/nixl/num_failed_transfers"] == 2
    assert metrics["transfers/nixl/num_kv_expired_reqs"] == 1
    # vLLM does not publish these two: unknown, not zero.
    assert not any("handshakes" in key or "after_expiry" in key for key in metrics)
    assert reader.summary_metrics()["scrape/vllm_num_requests_running/max"] == 3


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("program", "metric"),
    [("prometheus-node-exporter", "node_memory_MemTotal_bytes"),
     ("prometheus-redis-exporter", "redis_exporter_scrapes")],
)  # fmt: skip
def test_servers_of_others(program: str, metric: str) -> None:
    """A real exporter's answers are read whole, and chosen from by patterns."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (Debian: apt-get install {program})")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    option = "--web.listen-address" if "node" in program else "-web.listen-address"
    with subprocess.Popen(
        [path, f"{option}={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        # It does not answer yet: the job may start the endpoint later.
        every = ScrapeReader(f"http://{address}/metrics", interval=FAST, max_series=5000)
        some = ScrapeReader(f"http://{address}/metrics#{metric[:9]}*,none", interval=FAST)
        every.begin()
        some.begin()
        _until(lambda: _report(every) and _report(some))
        every.close()
        some.close()
        server.terminate()
    names = {key.split("/")[1] for key in every.summary_metrics()}
    assert metric in names
    assert len(names) > 30
    chosen = {key.split("/")[1] for key in some.summary_metrics()}
    assert metric in chosen
    assert all(name.startswith(metric[:9]) for name in chosen)


def test_endpoint_that_the_job_starts(serve: Serve) -> None:
    """An endpoint that refused at the start and comes later counts from zero, without a warning."""
    away = [True]

    def ask(url: str) -> Any:
        if away[0]:
            raise ConnectionRefusedError(111, "Connection refused")
        return parser.text_string_to_metric_families("# TYPE c_total counter\nc_total 7\n")

    reader = ScrapeReader("http://127.0.0.1:1/metrics", interval=FAST, fetch=ask)
    reader.begin()
    _until(lambda: reader._was_away)
    away[0] = False
    _until(lambda: _report(reader))
    reader.close()
    assert reader.summary_metrics() == {"scrape/c/total": 7}


def test_counts_begin_with_the_answer_that_the_block_waits_for() -> None:
    """Neither what grew before counts, however long a run is made, nor is the first moment lost."""
    value = [1000]

    def ask(url: str) -> Any:
        time.sleep(0.05)  # a busy endpoint
        text = f"# TYPE c_total counter\nc_total {value[0]}\n"
        return parser.text_string_to_metric_families(text)

    reader = ScrapeReader("http://127.0.0.1:1/metrics", interval=FAST, fetch=ask)
    value[0] = 5000
    run_sources.begin_scraping([reader])
    value[0] = 5100
    reader.close()
    assert reader.summary_metrics() == {"scrape/c/total": 100}
    unread = ScrapeReader("http://127.0.0.1:1/metrics", interval=FAST, fetch=ask)
    unread.close()
    assert unread.summary_metrics() == {}


def test_large_answer_is_never_held_whole(serve: Serve) -> None:
    """What reading takes is the job's memory: with 50,000 series it was 50 MB."""
    series = "".join(f'c_total{{i="{i}"}} {i}\n' for i in range(20_000))
    head = "# HELP c_total Of c.\n# TYPE c_total counter\n# a comment\n"
    body = f"{head}{series}# TYPE g gauge\ng 4\n"
    reader = ScrapeReader(serve(_text(body)), max_series=19_000)
    tracemalloc.start()
    sizes = []
    for family in _fetch_families(reader._url):
        sizes.append(len(family.samples))
        assert not family.samples or family.type in ("counter", "gauge")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 6 * len(body)
    assert max(sizes) == 1000
    assert sum(sizes) == 20_001
    reader.begin()
    _until(lambda: reader._answered)
    reader.close()
    figures = reader.summary_metrics()
    assert len(figures) == 19_000
    assert figures["scrape/c.i_18999/total"] == 0


def test_endpoint_that_never_comes(caplog: pytest.LogCaptureFixture) -> None:
    """An endpoint that is never there costs one warning, at the end, and nothing else."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/metrics"
    reader = ScrapeReader(url, interval=FAST)
    reader.begin()
    _until(lambda: reader._was_away)
    assert caplog.records == []
    reader.close()
    assert reader.summary_metrics() == {}
    assert reader.transfers().is_empty()
    (record,) = caplog.records
    assert record.getMessage() == f"The endpoint {url} cannot be read now: Connection refused"


def test_endpoint_that_vanishes(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """When an endpoint goes, its values are absent, its totals stay, and there is one warning."""
    there = [True]

    def answer(handler: Any) -> None:
        if not there[0]:
            handler.send_error(503)
            return
        _text("# TYPE c_total counter\nc_total 3\n# TYPE g gauge\ng 2\n")(handler)

    reader = ScrapeReader(serve(answer), interval=FAST)
    reader.begin()
    _until(lambda: _report(reader))
    there[0] = False
    _until(lambda: not _report(reader))
    reader.close()
    assert reader.summary_metrics()["scrape/g/max"] == 2
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "body",
    ["not { metrics", "a{b=} c d e f\n", "# TYPE h histogram\nh_bucket{le=\"x\"} nope\n", "\0\0"],
)  # fmt: skip
def test_malformed_answer(serve: Serve, body: str, caplog: pytest.LogCaptureFixture) -> None:
    """An answer that is no metrics costs one warning; the reader asks again."""
    asked = []

    def answer(handler: Any) -> None:
        asked.append(1)
        _text(body)(handler)

    reader = ScrapeReader(serve(answer), interval=FAST)
    reader.begin()
    _until(lambda: len(asked) >= 3)
    reader.close()
    assert reader.summary_metrics() == {}
    assert len(caplog.records) == 1


def test_redirect_is_not_followed(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is asked but who was named; the warning names where the endpoint points."""
    asked = []
    elsewhere = serve(lambda handler: asked.append(1))

    def answer(handler: Any) -> None:
        handler.send_response(302)
        handler.send_header("Location", elsewhere)
        handler.end_headers()

    reader = ScrapeReader(serve(answer), interval=FAST)
    reader.begin()
    _until(lambda: caplog.records)
    reader.close()
    assert asked == []
    assert elsewhere in caplog.text


@pytest.mark.parametrize("answer", ["<html>\x00\x1b[31m" + "x" * 10_000, "http://me:hush@x/"])
def test_the_warning_of_an_odd_endpoint_is_one_short_line(
    serve: Serve, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    """What an endpoint answers reaches a log without control characters and passwords."""

    def redirect(handler: Any) -> None:
        handler.send_response(302)
        handler.send_header("Location", answer)
        handler.end_headers()

    made = serve(redirect if answer.startswith("http") else _text(answer))
    reader = ScrapeReader(made, interval=FAST)
    reader.begin()
    _until(lambda: caplog.records)
    reader.close()
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.isprintable()
    assert len(message) < 400
    assert "hush" not in message


def test_slow_endpoint_does_not_block_reading(serve: Serve) -> None:
    """While an endpoint does not answer, read returns at once; closing waits a few seconds."""
    release = threading.Event()

    def wait(_handler: Any) -> None:
        release.wait(20)

    reader = ScrapeReader(serve(wait), interval=FAST)
    reader.begin()
    started = time.monotonic()
    assert _report(reader) == {}
    assert time.monotonic() - started < 1
    release.set()
    reader.close()


def test_answer_that_drips_or_never_ends_is_given_up(serve: Serve) -> None:
    """An answer that is too slow as a whole, or too large, raises OSError."""

    def drip(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"#\n")
            time.sleep(0.01)

    def flood(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"# flood\n" * 1000)

    with pytest.raises(OSError, match="in full"):
        fetch(serve(drip), timeout_sec=0.2)
    with pytest.raises(OSError, match="more than"):
        fetch(serve(flood), max_bytes=100_000)


def test_an_address_that_is_no_web_server(caplog: pytest.LogCaptureFixture) -> None:
    """A port that answers with something else raises OSError, not the library's own error."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"SSH-2.0-OpenSSH\r\n\r\n")

        threading.Thread(target=talk, daemon=True).start()
        with pytest.raises(OSError, match="web server"):
            fetch(f"http://127.0.0.1:{server.getsockname()[1]}/metrics")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000/metrics", "file:///etc/passwd", "ftp://host/x", "http:///x", "", None]
)
def test_wrong_address_is_refused(url: Any) -> None:
    """An address that is not http or https raises at the call; the message gives an example."""
    with pytest.raises(SettingError, match="http://127"):
        ScrapeReader(url)
    with pytest.raises(SettingError):
        scrape_readers(["http://127.0.0.1:1/metrics", url])


def test_password_in_the_address_is_refused() -> None:
    """An address with a password raises, for it would show in messages; this one hides it."""
    with pytest.raises(SettingError) as caught:
        ScrapeReader("http://user:secret@127.0.0.1/metrics")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_wrong_interval_is_refused(interval: float) -> None:
    """An interval that is not above zero raises at the call."""
    with pytest.raises(SettingError, match="interval"):
        ScrapeReader("http://127.0.0.1:1/metrics", interval=interval)


def test_several_endpoints_have_keys_of_their_own(serve: Serve) -> None:
    """Two endpoints with the same metrics do not meet in one key."""
    urls = [serve(_text(f"# TYPE g gauge\ng {value}\n")) for value in (1, 2)]
    readers = scrape_readers(urls, interval=FAST)
    run_sources.begin_scraping(readers)
    _until(lambda: all(_report(reader) for reader in readers))
    for reader in readers:
        reader.close()
    assert [reader.summary_metrics() for reader in readers] == [
        {f"scrape/{n}/g/{figure}": n + 1 for figure in ("min", "mean", "max")} for n in (0, 1)
    ]
