"""Bring the inputs of a pipeline onto this machine: local paths, downloads, and stand-ins."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mlflow_perf.core.temporary import make_temporary_folder
from mlflow_perf.core.uris import redact_address
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.definitions import find_definition

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]+):")
# azure-ai-ml drops the `azureml:` of an asset when it loads a YAML file.
_ASSET = re.compile(r"^(?:azureml:)?([A-Za-z0-9][\w.\-]*)(?:@([\w\-]+)|:([\w.\-]+))$")
_BLOB = re.compile(r"^wasbs?://([^@/]+)@([^/]+)/(.*[^/])$")
_TIMEOUT_SEC = 60.0

CodeSource = tuple[Path | None, tuple[Path, ...]]
"""A component's code, and what it includes beside it."""


def find_cache_folder() -> Path:
    """Return the folder that keeps downloads and environments between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mlflow-perf"


def parse_map(texts: Sequence[str]) -> dict[str, Path]:
    """Return the paths of `azureml:NAME@VERSION=PATH` texts, by the address before the `=`.

    Raises:
        PipelineError: A text has no `=`, or its path does not exist.
    """
    found: dict[str, Path] = {}
    for text in texts:
        address, equals, path = text.rpartition("=")
        if not equals or not address or not path:
            raise PipelineError(f"--map {text!r} must be azureml:NAME@VERSION=PATH.")
        if not Path(path).expanduser().exists():
            raise PipelineError(f"--map {address}: {path} does not exist.")
        found[address] = Path(path).expanduser().resolve()
    return found


@dataclass
class Sources:
    """Where the inputs of a pipeline come from.

    Attributes:
        given: Path by address, from `--map`.
        made: Path by name of the data assets that the pipeline's own script creates.
        environments: Name → environment that the pipeline's own script creates.
        cache: Folder of the downloads.
        make_folder: Makes a folder for the code of a job that a script submits.
        say: Prints a line for the user.
        unused: Addresses from `--map` that nothing has asked for.
    """

    given: Mapping[str, Path] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    environments: dict[str, Any] = field(default_factory=dict)
    cache: Path = field(default_factory=find_cache_folder)
    make_folder: Callable[[], Path] = make_temporary_folder
    say: Callable[[str], object] = lambda _text: None
    unused: set[str] = field(init=False)
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.unused = set(self.given)

    def find(self, text: str, base: Path, *, where: str) -> Path:
        """Return the absolute path of an input; a public one is downloaded.

        A relative path starts at the pipeline file's folder or, if nothing is there, at the current
        folder.

        Args:
            text: Path, `file:` or `https:` URI, or address of an asset.
            base: Folder of the pipeline file.
            where: Name of the step or option, to begin the message with.

        Raises:
            PipelineError: It is not on this machine and cannot be downloaded.
        """
        asset = None if (base / text).exists() else _ASSET.match(text)
        if (path := self.find_stand_in(text, is_asset=asset is not None)) is not None:
            return path
        if asset is not None and asset[1] in self.made:
            return self.find(self.made[asset[1]], base, where=where)
        if asset is not None and (defined := find_definition("data", text, base)) is not None:
            file, content = defined
            self.tell_definition(text, file)
            return self.find(str(content["path"]), file.parent, where=where)
        blob = _BLOB.match(text)
        url = f"https://{blob[2]}/{blob[1]}/{blob[3]}" if blob else text
        if url.startswith(("https://", "http://")):
            return self._download(url, where, text)
        shown = f"azureml:{text.removeprefix('azureml:')}" if asset else text
        return find_local_path(shown, base, where=where)

    def tell_definition(self, address: str, file: Path) -> None:
        """Say once that a file serves for a registered asset."""
        text = f"{address} is taken from {file}"
        if text not in self._told:
            self._told.add(text)
            self.say(text)

    def tell_unused(self, graphs: Sequence[object]) -> None:
        """Say which addresses from `--map` none of the graphs that were read has asked for."""
        for address in sorted(self.unused if graphs else ()):
            self.say(f"--map {address}: nothing of this name is used")

    def find_stand_in(self, text: str, *, is_asset: bool = True) -> Path | None:
        """Return the path that `--map` gives for an address; None if it gives none.

        Args:
            text: The address.
            is_asset: Whether it may be that of an asset, whose name alone stands for any version.
        """
        forms = [text, redact_address(text)]  # as a message names it
        if is_asset and (asset := _ASSET.match(text)):
            name, version = asset[1], asset[2] or asset[3]
            named = (f"{name}@{version}", f"{name}:{version}", name)
            forms += [address for form in named for address in (form, f"azureml:{form}")]
        for address in forms:
            if address in self.given:
                self.unused.discard(address)
                return self.given[address]
        return None

    def _download(self, url: str, where: str, text: str) -> Path:
        """Return the local copy of a public file, which is downloaded once."""
        name = re.sub(r"[^\w.\-]", "_", unquote(urlsplit(url).path).rpartition("/")[2]) or "data"
        folder = self.cache / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:16]
        path = folder / name
        if path.exists():
            return path
        self.say(f"downloading {redact_address(url)}")
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{secrets.token_hex(4)}.part"
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "mlflow-perf"})  # noqa: S310
            with (
                urllib.request.urlopen(request, timeout=_TIMEOUT_SEC) as answer,  # noqa: S310
                part.open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
            size, promised = part.stat().st_size, answer.headers.get("Content-Length")
            if promised is not None and size != int(promised):  # urlopen does not check this
                raise OSError(f"the server sent {size:,} of {int(promised):,} bytes")
            part.replace(path)
        except (OSError, ValueError, HTTPException) as error:
            part.unlink(missing_ok=True)
            reason = getattr(error, "reason", None) or error
            shown = redact_address(text)
            raise PipelineError(
                f"{where} takes {shown} as an input, which cannot be downloaded ({reason}): "
                f"give --map {shown}=PATH."
            ) from error
        return path


def find_local_path(text: str, base: Path, *, where: str) -> Path:
    """Return the absolute path of a local input.

    A relative path starts at the pipeline file's folder or, if nothing is there, at the current
    folder.

    Args:
        text: Path or `file:` URI.
        base: Folder of the pipeline file.
        where: Name of the step or option, to begin the message with.

    Raises:
        PipelineError: The path is remote.
    """
    scheme = _SCHEME.match(text)
    if scheme and scheme[1] != "file":
        shown = redact_address(text)
        raise PipelineError(
            f"{where} takes {shown} as an input, which is not on this machine: download it and "
            f"give --map {shown}=PATH, or use --on azureml."
        )
    path = Path(unquote(urlsplit(text).path) if scheme else text).expanduser()
    if not path.is_absolute() and not (base / path).exists():
        base = Path.cwd()
    return (base / path).resolve()
