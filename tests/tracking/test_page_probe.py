"""Whether a server has the page: asked once, beside the job, and any doubt is a no."""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mlflow_perf.core.uris import is_refused
from mlflow_perf.node.place import detect
from mlflow_perf.session.run_finder import RunFinder
from mlflow_perf.tracking.page_probe import PAGE_HEADER, has_page
from mlflow_perf.tracking.run_handle import RunHandle

Answer = Callable[[BaseHTTPRequestHandler], None]
_TRUSTED = ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Site:
    """A server that answers HEAD as it is told.

    Attributes:
        uri: Its address.
        answer: Sends the answer.
        asked: Path and `Authorization` of each request.
    """

    def __init__(self) -> None:
        site = self
        self.asked: list[tuple[str, str | None]] = []
        self.answer: Answer = lambda handler: reply(handler, 200, {PAGE_HEADER: "1"})

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                site.asked.append((self.path, self.headers["Authorization"]))
                site.answer(self)

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.uri = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


def reply(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server, and an environment without a user."""
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    one = Site()
    yield one
    one.server.shutdown()
    one.server.server_close()


def test_our_page_is_told_by_its_header(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request, below the server's prefix; its header, not any 200, is the sign."""
    # Certificates take 30 ms of a CPU to read, for each block.
    monkeypatch.setattr(ssl, "create_default_context", lambda: pytest.fail("no TLS is asked for"))
    assert has_page(f"{site.uri}/ml/")
    assert site.asked == [("/ml/perf", None)]
    site.answer = lambda handler: reply(handler, 200, {})
    assert not has_page(site.uri)


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Make a certificate of the loopback address; return it and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    for name in (*_TRUSTED, "MLFLOW_TRACKING_CLIENT_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    made, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key),
         "-out", str(made), "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True, check=True,
    )  # fmt: skip
    return made, key


def _serve_tls(site: Site, certificate: tuple[Path, Path], *, asks: bool = False) -> str:
    """Let the site answer with HTTPS, and ask clients for a certificate; return its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate[0])
    site.server.socket = context.wrap_socket(site.server.socket, server_side=True)
    return site.uri.replace("http", "https")


def test_a_double_of_the_jobs_is_not_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As httpretty, which counts the requests."""
    double = type("socket", (socket.socket,), {"__module__": "httpretty.core"})
    with monkeypatch.context() as replaced:
        replaced.setattr(socket, "socket", double)
        assert not has_page(site.uri)
        assert not is_refused("http://127.0.0.1:1")
    assert site.asked == []
    assert has_page(site.uri)
    assert is_refused("http://127.0.0.1:1")


def test_certificates_are_trusted_as_mlflow_trusts_them(
    site: Site, certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file or a folder that MLflow's variable, or those of its HTTP library, name."""
    bundle, folder = certificate[0], tmp_path / "folder"
    folder.mkdir()
    named = ["openssl", "x509", "-hash", "-noout", "-in", str(bundle)]
    digest = subprocess.run(named, capture_output=True, check=True, text=True).stdout.strip()
    (folder / f"{digest}.0").write_bytes(bundle.read_bytes())
    uri = _serve_tls(site, certificate)
    assert not has_page(uri)
    for name in _TRUSTED:
        for place in (bundle, folder):
            with monkeypatch.context() as patched:
                patched.setenv(name, str(place))
                assert has_page(uri), (name, place)


def test_a_certificate_is_shown_to_a_server_that_asks_for_one(
    site: Site, certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of MLflow's variable; nobody is asked for the password of an encrypted key."""
    made, key = certificate
    uri = _serve_tls(site, certificate, asks=True)
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(made))
    assert not has_page(uri)
    locked = tmp_path / "locked.pem"
    lock = ["openssl", "rsa", "-aes256", "-passout", "pass:x", "-in", str(key), "-out", str(locked)]
    subprocess.run(lock, capture_output=True, check=True)
    for place, is_shown in ((key, True), (locked, False)):
        shown = tmp_path / "client.pem"
        shown.write_bytes(made.read_bytes() + place.read_bytes())
        monkeypatch.setenv("MLFLOW_TRACKING_CLIENT_CERT_PATH", str(shown))
        assert has_page(uri) == is_shown


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_any_other_answer_is_a_no(site: Site, status: int) -> None:
    """MLflow without the plugin, a user without rights and an ill server have no page to link."""
    site.answer = lambda handler: reply(handler, status, {PAGE_HEADER: "1"})
    assert not has_page(site.uri)


def test_no_redirect_is_followed(site: Site) -> None:
    """A page to sign in is not ours, and another host must not get the password."""
    site.answer = lambda handler: reply(handler, 302, {"Location": f"{site.uri}/elsewhere"})
    assert not has_page(site.uri)
    assert [path for path, _ in site.asked] == ["/perf"]


_NO_SERVERS = ("", "sqlite:///x.db", "azureml://x", "http://127.0.0.1:1", "http://127.0.0.1:port")
_NO_ADDRESSES = ("http://[", "http://", "http://a b/")


@pytest.mark.parametrize("uri", [*_NO_SERVERS, *_NO_ADDRESSES])
def test_no_server_has_no_page(uri: str) -> None:
    """A store that is no server, one that refuses, and what is no address raise nothing."""
    assert not has_page(uri)


def _basic(pair: str) -> str:
    return "Basic " + base64.b64encode(pair.encode()).decode()


@pytest.mark.parametrize(
    ("environ", "user", "sent"),
    [
        ({"USERNAME": "ann", "PASSWORD": "pä"}, "", _basic("ann:pä")),
        ({"TOKEN": "t1"}, "", "Bearer t1"),
        ({}, "bob:p%40@", _basic("bob:p@")),
    ],
)
def test_it_signs_in_as_mlflow_does(
    site: Site,
    environ: dict[str, str],
    user: str,
    sent: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the user or the token of MLflow's own variables, or the user in the address."""
    for name, value in environ.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    assert has_page(site.uri.replace("://", f"://{user}"))
    assert site.asked == [("/perf", sent)]


def test_a_job_never_waits_for_the_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the server is silent the run is there and has no page; with the answer it has one."""
    free = threading.Event()

    def answer_later(handler: BaseHTTPRequestHandler) -> None:
        free.wait(60)
        reply(handler, 200, {PAGE_HEADER: "1"})

    site.answer = answer_later
    monkeypatch.setenv("MLFLOW_TRACKING_URI", site.uri)
    run = RunHandle(site.uri, run_id="r1")
    finder = RunFinder(run, detect({}), start_timeout_sec=1.0)
    finder.find()
    assert run.run_id == "r1"
    assert not run.has_page
    free.set()
    assert finder.page_probe is not None
    assert finder.page_probe.done_within(60)
    assert run.has_page


def test_a_rank_that_sends_nothing_asks_nothing(site: Site) -> None:
    """Of the ranks on a node only the one that samples needs to know."""
    node = detect({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1",
                   "SLURM_LOCALID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
                   "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1"})  # fmt: skip
    assert not node.samples
    finder = RunFinder(RunHandle(site.uri, run_id="r1"), node, start_timeout_sec=1.0)
    finder.find()
    assert finder.page_probe is None


def test_a_guard_of_the_network_is_a_no(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests replace `socket.socket` by a class that raises an error of its own."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no network in a test")

    monkeypatch.setattr("socket.socket", refuse)
    assert not has_page(site.uri)
