"""Where inputs come from: this machine, a download, or what stands in for them."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.sources import Sources, find_local_path, parse_map


def test_a_relative_path_starts_at_the_pipeline_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's folder comes first; if nothing is there, the current folder is used."""
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "raw").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    base = tmp_path / "file"
    assert find_local_path("raw", base, where="x") == base / "raw"
    assert find_local_path("other", base, where="x") == tmp_path / "here" / "other"
    assert find_local_path("file:///a%20b", base, where="x") == Path("/a b")


def test_a_remote_path_is_refused() -> None:
    """The message names the step and what to do."""
    with pytest.raises(PipelineError, match=r"Step 'a' takes azureml:data:1 .* --on azureml"):
        find_local_path("azureml:data:1", Path(), where="Step 'a'")


def test_a_public_file_is_downloaded_once(tmp_path: Path) -> None:
    """An http(s) address is fetched into the cache once; a failed or cut download is not kept."""
    asked: list[str] = []
    reasons = {
        "gone": "Not Found",
        "cut": "sent 4 of 4,000 bytes",
        "garbled": r"what\?",
        "a b": "control characters",
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if "garbled" in self.path:
                self.wfile.write(b"what?\r\n\r\n")
                return
            self.send_response(404 if "gone" in self.path else 200)
            if "cut" in self.path:
                self.send_header("Content-Length", "4000")
            self.end_headers()
            self.wfile.write(b"1,2\n")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    said: list[str] = []
    sources = Sources(cache=tmp_path / "cache", say=said.append)
    url = f"http://127.0.0.1:{server.server_port}/data/iris.csv?sig=x"
    try:
        found = [sources.find(url, tmp_path, where="x") for _ in range(2)]
        for name, why in reasons.items():
            said_so = rf"Step 'a' takes .*{name}.*{why}.* --map http"
            with pytest.raises(PipelineError, match=said_so):
                sources.find(url.replace("iris.csv", name), tmp_path, where="Step 'a'")
    finally:
        server.shutdown()
        server.server_close()
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == found[:1]
    assert found[0] == found[1]
    assert found[0].name == "iris.csv"
    assert found[0].read_bytes() == b"1,2\n"
    assert asked.count("/data/iris.csv?sig=x") == 1
    assert said[0] == f"downloading {url.replace('sig=x', '…')}"  # a query may be a signature
    mapped = Sources(parse_map([f"{url.replace('sig=x', '…')}={tmp_path}"]))
    assert mapped.find(url, tmp_path, where="x") == tmp_path


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("azureml:raw@latest", "azureml:raw@latest"),
        ("azureml:raw:3", "raw:3"),  # azure-ai-ml drops the prefix when it loads a YAML file
        ("azureml:raw", "raw@latest"),
        ("https://example.org/a=b.csv", "https://example.org/a=b.csv"),
        ("azureml://datastores/d/paths/x/", "azureml://datastores/d/paths/x/"),
    ],
)
def test_a_map_stands_in_for_an_asset(tmp_path: Path, given: str, asked: str) -> None:
    """An address is matched as it is written; a name alone matches every version."""
    sources = Sources(parse_map([f"{given}={tmp_path}"]))
    assert sources.find(asked, tmp_path / "base", where="x") == tmp_path


def test_another_version_is_not_stood_in_for(tmp_path: Path) -> None:
    """The refusal gives the address with its prefix, ready to be pasted."""
    sources = Sources(parse_map([f"azureml:raw:3={tmp_path}"]))
    with pytest.raises(
        PipelineError, match=r"takes azureml:raw:4 as an input.*--map azureml:raw:4="
    ):
        sources.find("raw:4", tmp_path, where="x")


@pytest.mark.parametrize(
    ("text", "message"),
    [("azureml:raw", "must be azureml:NAME@VERSION=PATH"), ("a=/not/there", "does not exist")],
)
def test_a_map_that_is_none(text: str, message: str) -> None:
    """A text without a path, or with a path that does not exist, is refused."""
    with pytest.raises(PipelineError, match=message):
        parse_map([text])


@pytest.mark.parametrize(
    "address",
    ["azureml:env@latest", "env@latest", "azureml:env", "env"],
)
def test_a_stand_in_is_found_by_each_of_its_addresses(address: str, tmp_path: Path) -> None:
    """With `azureml:` or without, for one version or for all; what is not asked for is known."""
    sources = Sources({address: tmp_path, "azureml:other:1": tmp_path})
    assert sources.find_stand_in("env@latest") == tmp_path
    assert sources.find_stand_in("azureml:env@latest") == tmp_path
    assert sources.find_stand_in("azureml:no:1") is None
    assert sources.unused == {"azureml:other:1"}
