"""Move key-value cache blocks from a prefill node to a decode node with NIXL.

Rank 0 holds the blocks of a cache. The other ranks fetch the blocks of each request, as a decode
node of a disaggregated model server does. A job of one rank does both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Without InfiniBand, UCX's module for it ends the interpreter with a segmentation fault.
os.environ.setdefault("UCX_MODULES", "^ib")

import numpy as np
from arguments import apply_common, parser

import mlflow_perf
from mlflow_perf.integrations import nixl
from mlflow_perf.node.place import detect

WAIT_SEC = 120.0
DONE = b"all requests are served"


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = parser(__doc__)
    made.add_argument("--requests", type=int, required=True)
    made.add_argument("--layers", type=int, required=True)
    made.add_argument("--blocks", type=int, required=True)
    made.add_argument("--block-kb", type=int, required=True)
    made.add_argument("--result", type=Path, required=True)
    return made


class Cache:
    """A NIXL agent and the memory of its cache.

    Args:
        name: Name of the agent.
        size: Bytes of the cache.
        fill: Value of each byte.
    """

    def __init__(self, name: str, size: int, fill: int) -> None:
        self.agent = nixl.agent(name)
        self.memory = np.full(size, fill, dtype=np.uint8)
        self.agent.register_memory([(self.memory.ctypes.data, size, 0, "")], "DRAM")

    def blocks(self, base: int, count: int) -> Any:
        """Return the descriptors of a cache of `count` blocks at an address."""
        size = self.memory.nbytes // count
        return self.agent.get_xfer_descs([(base + i * size, size, 0) for i in range(count)], "DRAM")

    def announce(self, path: Path) -> None:
        """Publish the address of this agent in a file, by a rename."""
        entry = {
            "metadata": self.agent.get_agent_metadata().hex(),
            "address": self.memory.ctypes.data,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(entry), encoding="utf-8")
        part.replace(path)

    def fetch(self, remote: Any, name: str, count: int) -> None:
        """Read all blocks of another agent's cache."""
        local = self.blocks(self.memory.ctypes.data, count)
        handle = self.agent.initialize_xfer("READ", local, remote, name)
        state = self.agent.transfer(handle)
        while state == "PROC":
            time.sleep(0)
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"A transfer from {name} ended as {state}.")


def wait(ready: Callable[[], Any], what: str) -> Any:
    """Call `ready` until its answer is not empty, and return that answer.

    Raises:
        TimeoutError: If there is none within two minutes.
    """
    deadline = time.monotonic() + WAIT_SEC
    while not (answer := ready()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {WAIT_SEC:g} s.")
        time.sleep(0.01)
    return answer


def decode(cache: Cache, announced: Path, args: argparse.Namespace) -> None:
    """Fetch the blocks of each request, and notify the prefill node at the end."""
    text = wait(lambda: announced.exists() and announced.read_text("utf-8"), "The prefill node")
    entry = json.loads(text)
    name = cache.agent.add_remote_agent(bytes.fromhex(entry["metadata"]))
    count = args.layers * args.blocks
    remote = cache.blocks(entry["address"], count)
    for _ in range(args.requests):
        cache.fetch(remote, name, count)
    if not (cache.memory == 1).all():
        raise RuntimeError("The blocks that arrived differ from the blocks that were sent.")
    cache.agent.send_notif(name, DONE)


def prefill(cache: Cache, decoders: int) -> None:
    """Hold the blocks until each decode node has fetched all its requests."""
    finished = 0

    def all_done() -> bool:
        nonlocal finished
        for messages in cache.agent.get_new_notifs().values():
            finished += messages.count(DONE)
        return finished >= decoders

    wait(all_done, "The end of the decode nodes")


def main() -> None:
    """Hold or fetch blocks by this process's rank, and write the figures of the transfers."""
    args = arguments().parse_args()
    with mlflow_perf.report("kv_transfer") as perf:
        apply_common(args, perf)
        node = detect()
        size = args.layers * args.blocks * args.block_kb * 1024
        announced = args.result / ".agents" / f"{node.job_id or 'local'}.json"
        if node.rank == 0:
            with perf.time("register"):
                held = Cache("prefill", size, fill=1)
            held.announce(announced)
            if node.world_size > 1:
                with perf.time("serve"):
                    prefill(held, node.world_size - 1)
                shutil.rmtree(announced.parent, ignore_errors=True)
        if node.rank > 0 or node.world_size == 1:
            with perf.time("register"):
                cache = Cache(f"decode-{node.rank}", size, fill=0)
            with perf.time("decode"):
                decode(cache, announced, args)
            figures = cache.agent.stats.reduce()
            name = "transfers.json" if node.rank < 2 else f"transfers-{node.rank}.json"
            (args.result / name).write_text(json.dumps(figures, indent=1), encoding="utf-8")
            print(json.dumps(figures))


if __name__ == "__main__":
    main()
