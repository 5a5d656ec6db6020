"""Addresses of tracking servers and stores: what they name, and how a message may name them.

Imports nothing of ours.
"""

from __future__ import annotations

import re
import socket
import urllib.parse
import urllib.request
from pathlib import Path

__all__ = [
    "blocking_file",
    "first_line",
    "is_http",
    "is_refused",
    "local_database",
    "names_host",
    "redact_password",
    "strip_credentials",
]

_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
# Up to the last @ before the path, as `requests` reads it, and further for a password with a slash
# in it, which a database's driver takes; a number before the slash is a port.
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):(?:[^\s/]*@|(?!\d+/)[^\s@?#]*@)")


def redact_password(text: str) -> str:
    """Return a text without the passwords of the addresses in it."""
    return _PASSWORD.sub(r"\1:***@", text)


def first_line(error: BaseException) -> str:
    """Return an exception as one line, without passwords."""
    return redact_password(f"{type(error).__name__}: {error}".splitlines()[0])


def is_http(uri: str) -> bool:
    """Tell whether an address is that of a server: `http://…` or `https://…`."""
    return uri.startswith(("http://", "https://"))


def names_host(uri: str) -> bool:
    """Tell whether an address is of something beyond this process and its files: a server's."""
    return re.match(r"(?!file:)[a-z][a-z0-9+.-]*://[^/]", uri, re.IGNORECASE) is not None


def strip_credentials(uri: str) -> str:
    """Return the address of a server as a browser may be given it: nobody is signed in by it."""
    return re.sub(r"(?<=://)[^\s/@]*@", "", uri)


def local_database(uri: str) -> Path | None:
    """Return the file of an embedded store; None for any other store, one in memory too."""
    scheme, _, place = uri.partition(":///")
    name = place.partition("?")[0]
    if not scheme.startswith("sqlite") or not name or name.startswith((":", "file:")):
        return None
    return Path(name)


def blocking_file(uri: str) -> Path | None:
    """Return what stands where a folder above an embedded store must be; None where nothing does.

    Some versions of MLflow try for a minute to make a store there.
    """
    file = local_database(uri)
    if file is None:
        return None
    above = next((place for place in file.absolute().parents if place.exists()), None)
    return None if above is None or above.is_dir() else above


def is_refused(uri: str, *, timeout_sec: float = 2.0) -> bool:
    """Tell whether a server certainly does not listen now, by knocking on its port.

    A refused connection answers in a millisecond; MLflow would try it again for four minutes, and a
    database for hours.

    Args:
        uri: Of a tracking server or a database; what names no host is never refused.
        timeout_sec: Most seconds to knock.
    """
    try:
        parts = urllib.parse.urlsplit(uri)
        scheme, host, port = parts.scheme.partition("+")[0], parts.hostname, parts.port
    except ValueError:
        return False
    if scheme not in _PORTS or host is None or _through_proxy(scheme, host):
        return False
    try:
        with socket.create_connection((host, port or _PORTS[scheme]), timeout=timeout_sec):
            return False
    except (ConnectionRefusedError, socket.gaierror):
        return True
    except (OSError, ValueError):
        return False


def _through_proxy(scheme: str, host: str) -> bool:
    if scheme not in urllib.request.getproxies():
        return False
    return not urllib.request.proxy_bypass(host)
