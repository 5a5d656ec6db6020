"""Open a URL without following redirects."""

from __future__ import annotations

import urllib.request


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes an opener follow no redirect, so that only the host that was named sees a password.

    The opener then raises an `HTTPError` with the server's 3xx code.
    """

    def redirect_request(self, *_: object, **__: object) -> None:
        """Return None: no other address is asked."""
