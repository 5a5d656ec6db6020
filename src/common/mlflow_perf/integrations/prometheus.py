"""A reader of Prometheus and OpenMetrics endpoints, in a thread of its own during the job."""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.client import HTTPException
from typing import Any

import prometheus_client.openmetrics.parser
import prometheus_client.parser
from prometheus_client.core import Metric

from mlflow_perf.core.no_redirect import NoRedirect
from mlflow_perf.core.own_cost import as_own
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Event, Lock, Thread
from mlflow_perf.core.uris import redact_password
from mlflow_perf.errors import SettingError
from mlflow_perf.integrations._scraped import Scraped
from mlflow_perf.recorders.transfers import NixlKVConnectorStats
from mlflow_perf.records import Column

# The text format first: in OpenMetrics, the official client (0.26) escapes the colons of a name
# like vllm:… in the samples but not in the TYPE line, so that they do not match.
_ACCEPT = "text/plain;version=0.0.4,*/*;q=0.1"
_MAX_BYTES = 8 * 2**20
_CHUNK = 64 * 2**10
_MAX_SAMPLES = 1000
_TIMEOUT_SEC = 2.0
_MAX_MESSAGE = 300
# Reading may take this share of one core: an endpoint with a huge answer is read less often.
_SHARE = 0.02
# No proxy of the environment: endpoints are asked directly, as Prometheus does.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect)
_logger = get_logger(__name__)

Fetch = Callable[[str], Iterable[Metric]]
"""Asks an endpoint and returns its metrics."""


class ScrapeReader:
    """Reads one endpoint at an interval; `read` takes the newest answer and never waits.

    Counters and histograms count from the first answer, for which `begin` waits: what grew while
    the job's run was made is not the job's. An endpoint that does not answer then is asked again:
    the job may be about to start it.

    Args:
        url: Address of the metrics; a fragment selects some: `http://…/metrics#vllm:*,process_*`.
        interval: Seconds between two readings.
        name: Name for messages, and first part of each key.
        max_series: How many series are kept.
        fetch: Asks an endpoint; for tests.

    Attributes:
        name: The name.
        columns: Empty: the metrics of an endpoint are not known before it answers.

    Raises:
        SettingError: If the address is not one of http or https, or the interval not above zero.
    """

    def __init__(
        self,
        url: str,
        *,
        interval: float = 1.0,
        name: str = "scrape",
        max_series: int = 200,
        fetch: Fetch | None = None,
    ) -> None:
        self.name = name
        self.columns: Sequence[Column] = ()
        self._url, patterns = _split_patterns(url)
        if not interval > 0:
            raise SettingError(f"The interval of scraping is {interval!r}: give seconds above 0.")
        self._fetch = fetch or _fetch_families
        self._interval = interval
        self._scraped = Scraped(patterns, max_series=max_series, prefix=name)
        self._present: dict[str, float] = {}
        self._answered = False
        self._was_away = False
        self._silent = False
        self._lock = Lock()
        self._stop = Event()
        self._asked = Event()
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Begin to read, just before the job's block begins.

        Raises:
            RuntimeError: When the system has no room for one more thread.
        """
        thread = Thread(self._run, name="mlflow-perf-scrape")
        thread.start()
        self._thread = thread

    def wait(self) -> None:
        """Wait until the endpoint was asked once, for at most two seconds."""
        if self._thread is not None:
            self._asked.wait(_TIMEOUT_SEC)

    def read(self, report: dict[str, float]) -> None:
        """Put the values of the newest answer into `report`; none while there is no answer."""
        report.update(self._present)

    def close(self) -> None:
        """Read a last time, for at most a few seconds, and end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_TIMEOUT_SEC + 1)

    def summary_metrics(self) -> dict[str, float]:
        """Return the figures of the whole job, after `close`: `scrape/<metric>/…`."""
        with self._lock:
            return self._scraped.summary_metrics()

    def transfers(self) -> NixlKVConnectorStats:
        """Return vLLM's NIXL transfers during the job, after `close`."""
        with self._lock:
            return self._scraped.transfers()

    @as_own()
    def _run(self) -> None:
        while True:
            started, cpu_started = time.perf_counter(), time.thread_time()
            last = self._stop.is_set()
            self._scrape()
            self._asked.set()
            if last:
                return
            cpu = time.thread_time() - cpu_started
            rest = self._interval - (time.perf_counter() - started)
            self._stop.wait(max(rest, cpu * (1 - _SHARE) / _SHARE, 0.0))

    def _scrape(self) -> None:
        try:
            present: dict[str, float] = {}
            # Metrics of the first answer were there before the job, unless the endpoint was away.
            first = not self._answered and not self._was_away
            for family in self._fetch(self._url):
                with self._lock:
                    present |= self._scraped.update([family], first=first)
            self._present, self._answered = present, True
        # The edge of a source: whatever an endpoint does, the job and the other sources go on.
        except Exception as error:  # noqa: BLE001
            self._present = {}
            away = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
            self._was_away = self._was_away or away
            # An endpoint that is not there yet may be about to start: warn only if it never comes.
            if self._silent or (away and not self._answered and not self._stop.is_set()):
                return
            self._silent = True
            # A hostile endpoint chooses this text: keep it on one line and short.
            reason = getattr(error, "reason", None)
            said = (reason.strerror if isinstance(reason, OSError) else None) or str(error)
            text = "".join(char if char.isprintable() else " " for char in said)
            if len(text) > _MAX_MESSAGE:
                text = f"{text[:_MAX_MESSAGE]}…"
            _logger.warning("The endpoint %s cannot be read now: %s", _redact(self._url), text)


def scrape_readers(urls: Sequence[str], *, interval: float = 1.0) -> list[ScrapeReader]:
    """Return a reader for each address; with several, the keys of each begin with its number.

    Raises:
        SettingError: If an address is wrong.
    """
    for url in urls:
        _split_patterns(url)
    if len(urls) == 1:
        return [ScrapeReader(urls[0], interval=interval)]
    return [
        ScrapeReader(url, interval=interval, name=f"scrape/{number}")
        for number, url in enumerate(urls)
    ]


def _split_patterns(url: Any) -> tuple[str, list[str]]:
    """Check an address; return it without its fragment, and the patterns of the fragment."""
    parts = urllib.parse.urlsplit(url if isinstance(url, str) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingError(
            f"{url!r} is not the address of an endpoint: give one such as "
            "http://127.0.0.1:8000/metrics."
        )
    if parts.username is not None or parts.password is not None:
        raise SettingError("The address of an endpoint holds a password: give one without.")
    patterns = [p for p in urllib.parse.unquote(parts.fragment).split(",") if p]
    return urllib.parse.urlunsplit(parts._replace(fragment="")), patterns


def _redact(url: str) -> str:
    """Return an address for messages: without its query, which may hold a token."""
    return redact_password(urllib.parse.urlunsplit(urllib.parse.urlsplit(url)._replace(query="")))


def _fetch_families(url: str) -> Iterable[Metric]:
    """Parse an answer family by family: whatever is built at once is the job's memory."""
    body, kind = fetch(url)
    is_text = not kind.startswith("application/openmetrics-text")
    parser: Any = prometheus_client.parser if is_text else prometheus_client.openmetrics.parser
    lines = _read_lines(body)
    families: Iterable[Metric] = parser.text_fd_to_metric_families(
        _cut_large(lines) if is_text else lines
    )
    return families


def _read_lines(body: bytearray) -> Iterator[str]:
    begin = 0
    while begin < len(body):
        end = body.find(b"\n", begin) + 1 or len(body)
        yield body[begin:end].decode("utf-8", "replace")
        begin = end


def _cut_large(lines: Iterable[str]) -> Iterator[str]:
    """Begin a family of many samples anew: the parser holds a family whole, at 1 kB a sample.

    Those whose series are added up stay whole.
    """
    name, head, count = "", list[str](), 0
    for line in lines:
        yield line
        parts = line.split(None, 3)
        if len(parts) > 2 and parts[0] == "#" and parts[1] in ("HELP", "TYPE"):
            if parts[2] != name:
                name, head, count = parts[2], [], 0
            head.append(line)
        elif not name.startswith("vllm:nixl_"):
            count += 1
            if count % _MAX_SAMPLES == 0:
                yield from ("# TYPE _ untyped\n", *head)


def fetch(
    url: str, *, timeout_sec: float = _TIMEOUT_SEC, max_bytes: int = _MAX_BYTES
) -> tuple[bytearray, str]:
    """Return an endpoint's answer, and its content type.

    Args:
        url: Address.
        timeout_sec: Seconds for the whole answer, however slowly it drips.
        max_bytes: Bytes beyond which an answer is refused.

    Raises:
        OSError: If it cannot be reached, answers with an error or a redirect, or is too slow or
            too large.
    """
    deadline = time.monotonic() + timeout_sec
    request = urllib.request.Request(url, headers={"Accept": _ACCEPT})  # noqa: S310 - checked
    body = bytearray()
    try:
        with _opener.open(request, timeout=timeout_sec) as answer:
            while part := answer.read1(_CHUNK):
                body += part
                if len(body) > max_bytes:
                    raise OSError(f"It answers with more than {max_bytes} bytes.")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"It has not answered in full within {timeout_sec:g} s.")
            return body, answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        target = error.headers.get("Location")
        if target is None or not 300 <= error.code < 400:
            raise
        address = _redact(urllib.parse.urljoin(url, target))
        reason = f"it redirects to {address}: name that address instead"
        raise urllib.error.HTTPError(url, error.code, reason, error.headers, None) from None
    except HTTPException as error:
        raise OSError(f"It does not answer as a web server does: {error!r}.") from error
