"""Checks whether a tracking server has the page `/perf` beside its UI.

MLflow's client is not used: a job that has not imported MLflow must not do so for a link, and the
client's retries would go on for minutes.
"""

from __future__ import annotations

import base64
import os
import ssl
import urllib.parse
import urllib.request
from pathlib import Path

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.no_redirect import NoRedirect
from mlflow_perf.core.replaced import find_socket_double
from mlflow_perf.core.uris import is_http
from mlflow_perf.tracking.job_requests import find_double

PAGE_PATH = "/perf"
PAGE_HEADER = "X-MLflow-Perf"
"""Header that distinguishes the page from a proxy that answers 200 to everything."""

_TIMEOUT_SEC = 10.0
_TRUSTED = ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that name the certificates to trust, as MLflow's client reads them: the first one."""


def _open_tls(scheme: str) -> list[urllib.request.HTTPSHandler]:
    """Return what opens an address of HTTPS; nothing for HTTP: a context takes 30 ms of a CPU."""
    if scheme != "https":
        return []
    trusted = next(filter(None, map(os.environ.get, _TRUSTED)), None)
    is_folder = trusted is not None and Path(trusted).is_dir()
    file, folder = (None, trusted) if is_folder else (trusted, None)
    context = ssl.create_default_context(cafile=file, capath=folder)
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("1", "true"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if shown := os.environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH"):
        context.load_cert_chain(shown, password="")  # without one, OpenSSL asks at the terminal
    return [urllib.request.HTTPSHandler(context=context)]


def has_page(tracking_uri: str) -> bool:
    """Return whether the server of a store shows `/perf`; without an answer it does not.

    Signs in as MLflow's client does with `MLFLOW_TRACKING_USERNAME`, `_PASSWORD` and `_TOKEN`.

    Args:
        tracking_uri: The MLflow store.
    """
    if not is_http(tracking_uri) or find_double() or find_socket_double():
        return False
    user, password, token = (
        os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD", "TOKEN")
    )
    try:
        parts = urllib.parse.urlsplit(tracking_uri)
        in_address, _, host = parts.netloc.rpartition("@")
        address = parts._replace(netloc=host, path=parts.path.rstrip("/") + PAGE_PATH, fragment="")
        request = urllib.request.Request(address.geturl(), method="HEAD")  # noqa: S310 - is_http
        if pair := f"{user}:{password}" if user else urllib.parse.unquote(in_address):
            encoded = base64.b64encode(pair.encode()).decode()
            request.add_header("Authorization", f"Basic {encoded}")
        elif token:
            request.add_header("Authorization", f"Bearer {token}")
        # A page to sign in is not ours, and no other host gets the password.
        opener = urllib.request.build_opener(NoRedirect, *_open_tls(parts.scheme))
        with opener.open(request, timeout=_TIMEOUT_SEC) as answer:
            return answer.status == 200 and PAGE_HEADER in answer.headers
    except Exception as error:  # also what a test's guard of the network raises
        if is_from_handler(error):
            raise
        return False
