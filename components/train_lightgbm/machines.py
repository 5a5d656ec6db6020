"""How the ranks of a training find each other: LightGBM wants `host:port` of every rank."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

_WAIT_SEC = 120.0


def find(rank: int, size: int, *, folder: Path, port: int) -> tuple[list[str], int]:
    """Return `host:port` of every rank, in their order, and this rank's own port.

    On Azure ML the nodes' addresses are in the environment. Elsewhere each rank writes its own into
    a folder that all of them see, and waits for the others'.

    Args:
        rank: Number of this rank.
        size: Number of ranks.
        folder: Folder that all ranks share.
        port: Port to use where ports cannot be agreed upon (Azure ML, one rank per node).

    Raises:
        TimeoutError: A rank did not show up within two minutes.
    """
    if addresses := azure_nodes(os.environ):
        return [f"{address}:{port}" for address in addresses[:size]], port
    own = _free_port()
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{rank}.json", {"host": socket.gethostname(), "port": own})
    found = [_read(folder / f"{other}.json") for other in range(size)]
    one_host = len({entry["host"] for entry in found}) == 1
    hosts = ["127.0.0.1" if one_host else _address(str(entry["host"])) for entry in found]
    return [f"{h}:{e['port']}" for h, e in zip(hosts, found, strict=True)], own


def azure_nodes(environ: Mapping[str, str]) -> list[str]:
    """Return the addresses of Azure ML's nodes, none elsewhere."""
    return [a for a in environ.get("AZ_BATCH_NODE_LIST", "").split(";") if a]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _address(host: str) -> str:
    return socket.gethostbyname(host)


def _write(path: Path, entry: dict[str, object]) -> None:
    """Write so that a reader sees all of it or nothing."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(entry), encoding="utf-8")
    part.replace(path)


def _read(path: Path) -> dict[str, object]:
    end = time.monotonic() + _WAIT_SEC
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"Rank {path.stem} did not show up in {_WAIT_SEC:.0f} s.")
        time.sleep(0.02)
    entry: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return entry
