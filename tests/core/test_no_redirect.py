"""An opener that follows no redirect."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mlflow_perf.core.no_redirect import NoRedirect


class _Redirecting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_redirect_is_an_error() -> None:
    """The server's own answer is raised, and no second address is asked."""
    server = HTTPServer(("127.0.0.1", 0), _Redirecting)
    thread = threading.Thread(target=server.handle_request, daemon=True)
    thread.start()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect)
    with pytest.raises(urllib.error.HTTPError) as caught:
        opener.open(f"http://127.0.0.1:{server.server_port}/", timeout=10)
    assert caught.value.code == 302
    caught.value.close()
    thread.join(10)
    server.server_close()
