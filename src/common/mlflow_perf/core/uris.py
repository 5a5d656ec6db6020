"""Addresses of tracking servers and stores: their parts, and how messages may show them."""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import re
import socket
import sys
import urllib.parse
from pathlib import Path

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.replaced import find_socket_double
from mlflow_perf.core.workspaces import read_workspace

_NAMED_SERVERS = ("databricks", "databricks-uc", "uc")
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
# A password ends at the last @ before the path, as in `requests`. A database driver also accepts a
# slash in a password, so the pattern looks further unless a port number precedes the slash; the
# address of a database has no @ after its host.
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):(?:[^\s/]*@|(?!\d+/)[^\s@?#]*@)")
_DATABASE_PASSWORD = re.compile(r"(?i)\b(?!https?:)([a-z][\w+.-]*://[^\s/:@]*):[^\s?'\"]*@")
# In the query of an address, or in that of ODBC, which is a part of it with %3D for each `=`.
_NAMES = r"passw(?:or)?d|pwd|secret|token|credential|signature|\bsig|(?:access|account|api)_?key"
# In a dictionary's text, or a database's connection. A language model's `</s>` is no secret.
_QUOTED_PASSWORD = re.compile(rf"(?i)((?:{_NAMES})['\"]?\s*[=:]\s*)(['\"])(?![<\[])(?:(?!\2).)+\2")
_QUERY_PASSWORD = re.compile(
    rf"(?i)((?:{_NAMES})(?:=(?=[^\s&;'\"])|%3D(?!%3B)))"
    r"(?:(?<==)[^\s&;'\"]*[^\s&;,'\"]|(?:(?!%3B)[^\s&;'\"])+)"
)
_QUERY = re.compile(r"(://[^\s?'\"]*)\?[^\s)'\"]+")
_FAULTS = (AttributeError, LookupError, NameError, TypeError)  # of a program, not of what it asks
_PASSWORD_NAME = re.compile(r"(?i)(passw(or)?d|passphrase|pwd|secret)$")
_SECRET_NAME = re.compile(
    r"(?i)(passw(or)?d|passphrase|pwd|(^|[_-])pass|secret|credential"
    r"|(access|account|api|auth|secret|private|encryption|signing|ssh|storage|openai)[_-]?key)s?$"
    r"|(?<!(?:pad|eos|bos|unk|sep|cls)[_-])(?<!(?:mask|stop)[_-])token$"
)
_NUMBER_OR_WORD = re.compile(r"(?i)|true|false|none|[-+]?[\d.]+(e[-+]?\d+)?|<.*>|\[[A-Z]+\]")
_RANDOM_KEY = re.compile(r"(?=.*\d)(?=.*[a-zA-Z])[\w+/=.~-]{16,}")
# In what a program prints: `password: x`, `--token x`, `X-Api-Key: x`, `Bearer x`.
_SPOKEN_PASSWORD = re.compile(
    r"(?i)((?:\b(?:[\w-]*passw(?:or)?d|passphrase|[\w-]*api[_-]?key|[\w-]*access[_-]?key|secret)"
    r"\s*:|(?<!\S)--(?:[\w-]*passw(?:or)?d|[\w-]*token|[\w-]*secret|[\w-]*key))\s+)[^\s'\"<\[{(-]\S*"
)
_BEARER = re.compile(r"(\b(?i:bearer|token:)\s+)(?=\S*\d)[\w.~+/-]{8,}=*")
_AUTHORIZATION = re.compile(r"(?i)(\bauthorization\s*[:=]\s*(?:basic|bearer)\s+)[^\s'\"]+")
_HEADER = re.compile(r"(?<=['\"])(Basic|Bearer) [^'\"]+")


def redact_password(text: str) -> str:
    """Return a text without the passwords of the addresses and the quoted headers in it."""
    for pattern in (_DATABASE_PASSWORD, _PASSWORD):
        text = pattern.sub(r"\1:***@", text)
    text = _QUERY_PASSWORD.sub(r"\1***", _QUOTED_PASSWORD.sub(r"\1\2***\2", text))
    return _AUTHORIZATION.sub(r"\1***", _HEADER.sub(r"\1 ***", text))


def redact_address(text: str) -> str:
    """Return a text without the passwords and queries of the addresses in it.

    A query may be a signature, as in the links to Azure's storage.
    """
    return _QUERY.sub(r"\1?…", redact_password(text)) if "://" in text else text


def redact_text(text: str) -> str:
    """Return a text of others without the secrets that can be told: passwords, queries, headers."""
    masked = redact_password(redact_address(text))
    return _BEARER.sub(r"\1***", _SPOKEN_PASSWORD.sub(r"\1***", masked))


@functools.lru_cache(maxsize=4096)  # the same few, for each of a thousand runs
def redact_param(name: str, value: str) -> str:
    """Return a parameter's value as it may be shown: no password, key or signature."""
    is_number_or_word = _NUMBER_OR_WORD.fullmatch(value)
    if (
        (_SECRET_NAME.search(name) and not is_number_or_word)
        or (_PASSWORD_NAME.search(name) and value.isdigit())
        or (name.lower().endswith("key") and _RANDOM_KEY.fullmatch(value))
    ):
        return "***"
    return redact_text(value)


def first_line(error: BaseException) -> str:
    """Return an exception as one line, without passwords; a fault of a program with its place."""
    # `re` imports a part of itself when it replaces for the first time, and calls deep.
    if sys.is_finalizing() or isinstance(error, RecursionError):
        return type(error).__name__
    name, reason = type(error).__name__, reason_of(error)
    text, place = name if reason == name else f"{name}: {reason}", error.__traceback__
    if place is None or not isinstance(error, _FAULTS):
        return text
    while place.tb_next is not None:
        place = place.tb_next
    return f"{text}, in {Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}"


def reason_of(error: BaseException) -> str:
    """Return the first line of an exception's message without passwords; without one, its name."""
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            Path.cwd()
        except FileNotFoundError:  # which imports of MLflow ask for
            return "the current folder has been removed"
    # SQLAlchemy's remark on where a statement came from precedes the reason.
    text = re.sub(r"\(raised as a result of Query-invoked autoflush;.*\n", "", str(error))
    return redact_password((text.splitlines() or [""])[0]) or type(error).__name__


def is_http(uri: str) -> bool:
    """Return whether an address is that of a web server: `http://…` or `https://…`."""
    return uri.startswith(("http://", "https://"))


def is_local(uri: str) -> bool:
    """Return whether a store is in files of this machine: SQLite, `file:…` or a folder's path."""
    scheme = re.match(r"([a-z][a-z0-9+.-]+):", uri, re.IGNORECASE)  # C:\\ is a path
    if scheme is None:
        return uri not in _NAMED_SERVERS
    return scheme[1].lower().startswith(("sqlite", "file"))


def absolute_store(uri: str) -> str:
    """Return the address of a store that stays right when the job changes its working folder."""
    file = find_local_database(uri)
    try:
        if file is not None and not file.is_absolute():
            scheme, _, place = uri.partition(":///")
            return f"{scheme}:////{str(Path.cwd()).lstrip('/')}/{place}"
        if uri and ":" not in uri and uri not in _NAMED_SERVERS:
            return os.path.abspath(uri)  # noqa: PTH100 - as MLflow has it, a text
    except OSError:  # the working folder was deleted
        pass
    return uri


def is_same_store(one: str, other: str) -> bool:
    """Return whether two addresses name one store, as far as their text tells."""
    return _simplify(one) == _simplify(other)


def _simplify(uri: str) -> str:
    """Return an address without what makes no difference: credentials, case, a slash at the end."""
    plain = strip_credentials(absolute_store(uri)).rstrip("/")
    plain = re.sub(r"(?i)^https?://[^/]*", lambda found: found[0].lower(), plain)
    return re.sub(r"(?<=://)localhost(?=[:/]|$)", "127.0.0.1", plain)


def strip_credentials(uri: str) -> str:
    """Return the address of a server without user name and password, to show in a browser."""
    return re.sub(r"(?<=://)[^\s/@]*@", "", uri)


def encode_query(*, workspace: str | None = None, **values: str) -> str:
    """Return the query of a page of MLflow's server.

    Args:
        workspace: The workspace that has what is shown; default: the one that MLflow uses now.
        values: The rest.
    """
    place = read_workspace() if workspace is None else workspace
    return urllib.parse.urlencode({**values, **({"workspace": place} if place else {})})


def is_database(uri: str) -> bool:
    """Return whether MLflow opens a store as a database itself, in a file or on a server."""
    scheme = uri.partition(":")[0].partition("+")[0]
    return scheme == "sqlite" or (scheme in _PORTS and not is_http(uri))


@functools.lru_cache(maxsize=64)
def find_local_database(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for any other store, including one in memory."""
    scheme, _, place = uri.partition(":///")
    name = place.partition("?")[0]
    if not scheme.startswith("sqlite") or not name or name.startswith((":", "file:")):
        return None
    return Path(name)


def blocking_file(uri: str) -> Path | None:
    """Return what takes the place of an SQLite store: a file above it, or a folder of its name.

    MLflow tries for a minute to create a store there.
    """
    file = find_local_database(uri)
    if file is None:
        return None
    try:
        if file.is_dir():
            return file
        above = next((place for place in file.absolute().parents if place.exists()), None)
    except OSError:  # the working folder was deleted
        return None
    return None if above is None or above.is_dir() else above


def is_refused(uri: str, *, timeout_sec: float = 2.0) -> bool:
    """Return whether a server certainly cannot be reached now, by connecting to its port.

    A refused connection answers in a millisecond, and so does a machine without a network, or a
    sandbox that forbids it. MLflow would retry for four minutes, and a database driver for hours. A
    name server that is away answers after a minute; so a name is looked up in a thread.

    Args:
        uri: Address of a tracking server or a database; one without a host is never refused. Nor
            is any where a test of the job's has replaced the sockets.
        timeout_sec: How long to try, in seconds.
    """
    try:
        parts = urllib.parse.urlsplit(uri)
        scheme, host, port = parts.scheme.partition("+")[0], parts.hostname, parts.port
    except ValueError:
        return False
    if scheme not in _PORTS or host is None or find_socket_double():
        return False
    # Imported here because it takes 12 ms, which every command would pay.
    from urllib.request import getproxies, proxy_bypass

    if scheme in getproxies() and not proxy_bypass(host):
        return False  # only the proxy's port could be asked

    def knock() -> bool:
        try:
            with socket.create_connection((host, port or _PORTS[scheme]), timeout=timeout_sec):
                return False
        except OSError as error:
            if is_from_handler(error):
                raise
            refusals = ConnectionRefusedError, PermissionError, socket.gaierror
            is_down = error.errno in (errno.ENETUNREACH, errno.ENETDOWN)
            return is_down or isinstance(error, refusals)
        except Exception as error:  # no number of a port, or a guard of the network in a test
            if is_from_handler(error):
                raise
            return False

    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return knock()
    try:
        return BackgroundCall(knock, name="knock").result(timeout_sec)
    except (TimeoutError, RuntimeError) as error:  # or no more threads
        if is_from_handler(error):
            raise
        return False
