"""Addresses of stores: what is told of them, and that no password is."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.uris import (
    absolute_store,
    blocking_file,
    find_local_database,
    first_line,
    is_http,
    is_local,
    is_refused,
    is_same_store,
    redact_address,
    redact_param,
    redact_password,
    redact_text,
    strip_credentials,
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("http://host:5000/a", "http://host:5000/a"),
        ("http://me:secret@host:5000", "http://me:***@host:5000"),
        ("postgresql+psycopg2://me:se:cret@host/db", "postgresql+psycopg2://me:***@host/db"),
        ("GET https://:secret@host/x and http://a:b@c", "GET https://:***@host/x and http://a:***@c"),
        ("http://me:p@ss:w@host:5000/a@b", "http://me:***@host:5000/a@b"),
        ("postgresql://me:pa/ss@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:p@s/s@host/db b@c", "postgresql://me:***@host/db b@c"),
        ("mysql://host/db?user=me&password=a%26b&ssl=1", "mysql://host/db?user=me&password=***&ssl=1"),
        ("mssql:///?odbc=UID%3Dme%3BPWD%3Da%20b%3BSrv%3Dx&a=b", "mssql:///?odbc=UID%3Dme%3BPWD%3D***%3BSrv%3Dx&a=b"),
        ("connection to host=a password=b failed", "connection to host=a password=*** failed"),
        ("TOKEN=abc, x and pwd=a,b", "TOKEN=***, x and pwd=***"),
        ("sqlite:///x.db?password= and tokens=5", "sqlite:///x.db?password= and tokens=5"),
        ("http://host:5000/api/@me", "http://host:5000/api/@me"),
        ("http://host/path:with@signs", "http://host/path:with@signs"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("no address: a@b", "no address: a@b"),
        ("no header value: 'Bearer secret\\n'", "no header value: 'Bearer ***'"),
        ('no header value: "Basic secret=="', 'no header value: "Basic ***"'),
    ],
)  # fmt: skip
def test_a_message_tells_no_password(text: str, told: str) -> None:
    """Passwords are removed from addresses and headers in a text; the rest is unchanged."""
    assert redact_password(text) == told


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("data", "https://a.blob.core.windows.net/c/f.csv?sv=1&sig=x", "https://a.blob.core.windows.net/c/f.csv?…"),
        ("store", "s3://key:secret@bucket/x", "s3://key:***@bucket/x"),
        ("db_password", "5", "***"), ("AWS_SECRET_ACCESS_KEY", "x", "***"), ("apiKey", "x", "***"),
        ("max_tokens", "512", "512"), ("eos_token", "</s>", "</s>"), ("secretary", "me", "me"),
        ("hf_token", "x", "***"), ("token", "hf_1", "***"), ("aws_session_token", "x", "***"),
        ("db_pass", "x", "***"), ("pwd", "x", "***"), ("passphrase", "x", "***"),
        ("private_key", "x", "***"), ("stripe_key", "sk-0123456789abcdef", "***"),
        *[(name, value, value) for name, value in (
            ("max_auth_tokens", "4096"), ("n_api_keys", "3"), ("use_password", "True"),
            ("compass", "north"), ("special_tokens", "a"), ("forget_secret", "0.5"),
            ("n_credentials", "3"), ("sort_key", "duration"), ("pad_token", "PAD"),
        )],
        ("kw", "{'password': 'x', 'a_token': '</s>'}", "{'password': '***', 'a_token': '</s>'}"),
        ("dsn", "host=h password='x y' port=1", "host=h password='***' port=1"),
        ("link", "AccountName=a;AccountKey=x==", "AccountName=a;AccountKey=***"),
        ("q", "sv=1&sig=x", "sv=1&sig=***"),
        ("question", "why? a=b", "why? a=b"), ("query", "//x?a=b", "//x?a=b"),
    ],
)  # fmt: skip
def test_a_parameter_is_shown_without_its_secret(name: str, value: str, shown: str) -> None:
    """Passwords, keys and signatures of addresses are hidden; the field's own words are not."""
    assert redact_param(name, value) == shown
    if name == "data":
        assert redact_address(f"get {value} 'now'") == f"get {shown} 'now'"


def test_an_error_is_one_line_without_passwords() -> None:
    """Passwords are removed from messages of libraries as well."""
    error = OSError("cannot reach http://me:secret@host\nand more")
    assert first_line(error) == "OSError: cannot reach http://me:***@host"
    flushed = "(raised as a result of Query-invoked autoflush; consider using …)\nit is read-only"
    assert first_line(RuntimeError(flushed)) == "RuntimeError: it is read-only"


def test_a_folder_that_has_been_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import of MLflow asks for the current folder: neither a store nor a file is missing."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    with pytest.raises(FileNotFoundError) as caught:
        Path("nothing").stat()
    assert "'nothing'" in first_line(caught.value)
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        os.getcwd()
    assert first_line(caught.value).endswith(": the current folder has been removed")


def test_a_fault_of_a_program_is_shown_with_its_place() -> None:
    """A user can report it; what a server or a file refused needs no place."""
    with pytest.raises(AttributeError) as caught:
        eval("().get")
    shown = "AttributeError: 'tuple' object has no attribute 'get', in <string>:1"
    assert first_line(caught.value) == shown
    with pytest.raises(OSError, match="full") as refused:
        raise OSError("the disk is full")
    assert first_line(refused.value) == "OSError: the disk is full"


@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        (PermissionError(errno.EPERM, "a sandbox without a network"), True),
        (OSError(errno.ENETUNREACH, "a machine without a network"), True),
        (TimeoutError("a server that hangs"), False),
        (RuntimeError("a guard of the network, as of pytest-socket"), False),
    ],
)
def test_a_ban_on_every_connection_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_away: bool
) -> None:
    """MLflow would try again for minutes where this machine cannot connect at all."""

    def connect(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("socket.create_connection", connect)
    assert is_refused("http://127.0.0.1:5000") is is_away


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("sqlite:///mlflow.db", Path("mlflow.db")),
        ("sqlite:////data/mlflow.db?timeout=5", Path("/data/mlflow.db")),
        ("sqlite+pysqlite:////data/m.db", Path("/data/m.db")),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("sqlite:///file:m.db?uri=true", None),
        ("postgresql:///db", None),
        ("http://host", None),
        ("", None),
    ],
)
def test_only_an_embedded_store_has_a_file(uri: str, file: Path | None) -> None:
    """A store in memory, on a server or behind a URI of SQLite's own has none."""
    assert find_local_database(uri) == file


def test_files_that_block_an_embedded_store(tmp_path: Path) -> None:
    """A file above its place does, or a folder at it; a folder still to be made does not."""
    file = tmp_path / "file"
    file.touch()
    assert blocking_file(f"sqlite:///{file}/a/mlflow.db") == file
    assert blocking_file(f"sqlite:///{tmp_path}") == tmp_path
    assert blocking_file(f"sqlite:///{tmp_path}/a/b/mlflow.db") is None
    assert blocking_file("http://host/a") is None


@pytest.mark.parametrize("scheme", ["http", "postgresql", "mysql+pymysql"])
def test_a_closed_port_refuses_and_an_open_one_does_not(scheme: str) -> None:
    """Servers and databases are knocked at alike."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"{scheme}://me:secret@127.0.0.1:{listener.getsockname()[1]}/x"
        assert is_refused(address)
        listener.listen()
        assert not is_refused(address)


@pytest.mark.parametrize(
    "uri", ["", "://", "http://[bad", "http://host:port", "sqlite:///x", "databricks", "foo://x:1"]
)
def test_an_address_without_a_known_port_is_never_refused(uri: str) -> None:
    """Whether it can be used is for MLflow to say."""
    assert not is_refused(uri)


def test_an_address_for_a_browser_signs_nobody_in() -> None:
    """A link contains neither a password nor a user's name."""
    assert strip_credentials("http://me:secret@host:5000/a") == "http://host:5000/a"
    assert strip_credentials("https://host/a@b") == "https://host/a@b"


def test_the_address_of_a_server() -> None:
    """Only http and https are servers'."""
    assert [is_http(u) for u in ("http://a", "https://a", "sqlite:///a", "")] == [True, True] + [
        False
    ] * 2


@pytest.mark.parametrize("uri", ["postgresql+psycopg2://u@db/x", "http://h:1", "databricks://p"])
def test_a_server_is_told_from_files(uri: str) -> None:
    """What is not in files of this machine may be away."""
    assert not is_local(uri)
    assert not any(map(is_local, ["databricks", "http://", "plugin://x"]))
    assert all(map(is_local, ["sqlite:///a.db", "file:///a", "./mlruns", ""]))


def test_an_address_outlives_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative store becomes absolute; without a working folder it stays as it is."""
    monkeypatch.chdir(tmp_path)
    assert absolute_store("sqlite:///a/m.db?timeout=5") == f"sqlite:///{tmp_path}/a/m.db?timeout=5"
    assert absolute_store("mlruns") == str(tmp_path / "mlruns")
    for uri in ("sqlite:////data/m.db", "http://h:1", "databricks", "", "sqlite://"):
        assert absolute_store(uri) == uri
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir("gone")
    (tmp_path / "gone").rmdir()
    assert absolute_store("sqlite:///m.db") == "sqlite:///m.db"
    assert blocking_file("sqlite:///m.db") is None


def test_a_name_server_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is looked up within the limit; without an answer the server may well be there."""
    over = threading.Event()

    def hang(*_: object, **__: object) -> list[object]:
        over.wait(60)
        raise socket.gaierror("no answer")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    began = time.monotonic()
    assert not is_refused("http://tracking.example:5000", timeout_sec=0.05)
    assert time.monotonic() - began < 30
    over.set()


@pytest.mark.parametrize("host", ["127.0.0.1", "tracking.example"])
def test_a_time_limit_of_the_job_ends_the_wait_for_a_server(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """It is often a `TimeoutError`, as that of a server which does not answer."""

    def expire(*_: object) -> None:
        raise TimeoutError("the job's limit")

    def wait(*_: object, **__: object) -> NoReturn:
        signal.raise_signal(signal.SIGUSR1)
        raise OSError(errno.EHOSTUNREACH, "unreachable")

    monkeypatch.setattr("socket.create_connection", wait)
    monkeypatch.setattr(BackgroundCall, "result", wait)
    before = signal.signal(signal.SIGUSR1, expire)
    try:
        with pytest.raises(TimeoutError, match="the job's limit"):
            is_refused(f"http://{host}:5000")
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("http://localhost:5000/", "http://me:pw@127.0.0.1:5000", True),
        ("http://host/base", "http://host/base/", True),
        ("http://localhost", "http://127.0.0.1", True),
        ("sqlite:///here.db", f"sqlite:////{str(Path.cwd()).lstrip('/')}/here.db", True),
        ("HTTP://Host:1/a", "http://host:1/a", True),
        ("http://host/a", "http://host/A", False),
        ("http://localhost:5000", "http://localhost:5001", False),
        ("http://localhost.org", "http://127.0.0.1.org", False),
    ],
)
def test_a_store_has_several_spellings(one: str, other: str, is_same: bool) -> None:
    assert is_same_store(one, other) == is_same


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password: hunter4pw", "password: ***"),
        ("--db-password hunter4pw --rows 3", "--db-password *** --rows 3"),
        ("--token abc.def", "--token ***"),
        ("X-Api-Key: k123", "X-Api-Key: ***"),
        ("Bearer hunter4pw", "Bearer ***"),
        ("token: hf_abc123XYZ", "token: ***"),
        ("a bearer of news, token: expected", "a bearer of news, token: expected"),
        ("Enter password: ", "Enter password: "),
        ("keyboard: yes", "keyboard: yes"),
    ],
)
def test_what_a_program_prints_has_no_secret(text: str, shown: str) -> None:
    """In the forms in which people write them; other words stay."""
    assert redact_text(text) == shown
