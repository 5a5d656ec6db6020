"""Whether a tracking server has the page `/perf` beside its UI. Imports addresses.

Asks without MLflow's client: a job that has not imported MLflow must not do so for a link, and its
retries would go on for minutes.
"""

from __future__ import annotations

import base64
import os
import ssl
import urllib.parse
import urllib.request
from http.client import HTTPException

from mlflow_perf.core.uris import is_http

__all__ = ["PAGE_HEADER", "PAGE_PATH", "has_page"]

PAGE_PATH = "/perf"
PAGE_HEADER = "X-MLflow-Perf"
"""Header by which the page is told from a proxy that answers 200 to everything."""

_TIMEOUT_SEC = 10.0


def has_page(tracking_uri: str, *, timeout_sec: float = _TIMEOUT_SEC) -> bool:
    """Tell whether the server of a store shows `/perf`; no answer, or no server, is a no.

    Signs in as MLflow's client does with `MLFLOW_TRACKING_USERNAME`, `_PASSWORD` and `_TOKEN`.

    Args:
        tracking_uri: The MLflow store.
        timeout_sec: Most seconds to wait for the connection, and for the answer.
    """
    if not is_http(tracking_uri):
        return False
    try:
        request = _request(tracking_uri)
        with _opener().open(request, timeout=timeout_sec) as answer:
            return answer.status == 200 and PAGE_HEADER in answer.headers
    except (OSError, ValueError, HTTPException):
        return False


def _request(tracking_uri: str) -> urllib.request.Request:
    parts = urllib.parse.urlsplit(tracking_uri)
    signed_in, _, host = parts.netloc.rpartition("@")
    address = parts._replace(netloc=host, path=parts.path.rstrip("/") + PAGE_PATH, fragment="")
    headers = _authorization(urllib.parse.unquote(signed_in))
    return urllib.request.Request(address.geturl(), headers=headers, method="HEAD")  # noqa: S310 - is_http


def _authorization(in_address: str) -> dict[str, str]:
    user, password, token = (
        os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD", "TOKEN")
    )
    pair = f"{user}:{password}" if user else in_address
    if pair:
        return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    return {"Authorization": f"Bearer {token}"} if token else {}


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a page to sign in is not ours, and no other host gets the password."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _opener() -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cafile=os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH"))
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("1", "true"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return urllib.request.build_opener(_Stay, urllib.request.HTTPSHandler(context=context))
