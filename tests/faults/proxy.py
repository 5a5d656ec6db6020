"""A small HTTP proxy before a real MLflow server that can be told to be ill."""

from __future__ import annotations

import http.client
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["FaultyProxy"]


class FaultyProxy:
    """Passes requests on to a server, or does what `fault` says.

    Args:
        upstream: Address of the server.

    Attributes:
        uri: The proxy's own address, the same for as long as it lives.
        fault: `None` passes on; `"hang"` never answers; a number of 100 and more answers with that
            status; a smaller one passes on after that many seconds.
        asked: How many requests have come.
        unanswered: How many more requests for a run are passed on, and their answers lost.
    """

    def __init__(self, upstream: str) -> None:
        self.fault: str | float | None = None
        self.asked = self.unanswered = 0
        self.upstream = urllib.parse.urlsplit(upstream)
        self.released = threading.Event()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.listen()

    @property
    def uri(self) -> str:
        """The proxy's own address."""
        return f"http://127.0.0.1:{self._port}"

    def listen(self) -> None:
        """Accept connections, again."""
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def refuse(self) -> None:
        """Let connections be refused from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def heal(self) -> None:
        """Be well again."""
        self.fault = None
        if self._server is None:
            self.listen()

    def close(self) -> None:
        """End."""
        self.released.set()
        self.refuse()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy

    def _pass_on(self) -> None:
        self.proxy.asked += 1
        fault = self.proxy.fault
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault == "hang":
            self.proxy.released.wait(60)
            self.close_connection = True
            return
        if isinstance(fault, (int, float)):
            if fault >= 100:
                self.send_response(int(fault))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.proxy.released.wait(fault)
        upstream = self.proxy.upstream
        connection = http.client.HTTPConnection(str(upstream.hostname), upstream.port, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
        headers["Host"] = upstream.netloc
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        if self.path.endswith("/runs/create") and self.proxy.unanswered > 0:
            self.proxy.unanswered -= 1
            self.close_connection = True
            return
        self.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        connection.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815 - the server's names

    def log_message(self, *args: object) -> None:
        pass
