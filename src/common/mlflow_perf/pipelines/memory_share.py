"""The memory and the cores of a machine, shared by the steps that run on it side by side.

Steps run in threads and in processes that know nothing of each other, so what is taken is written
in a file per machine, and changed under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mlflow_perf.core.clock import pause

_POLL_SEC = 0.1
_PATIENCE_SEC = 60.0
"""After this time no step overtakes a step that waits for more memory."""


@dataclass
class MemoryShare:
    """What one machine has for the steps of a pipeline.

    Attributes:
        folder: Folder for the file; all workers on the machine see it.
        memory_mb: Memory for all steps together, in MB.
        cpus: Cores for all steps together.
    """

    folder: Path
    memory_mb: float
    cpus: float

    @contextlib.contextmanager
    def take(
        self, memory_mb: float, cpus: float, *, is_stopped: Callable[[], bool]
    ) -> Iterator[bool]:
        """Hold a share for the time of a block; wait until it is free.

        A share larger than the machine is held by a step that runs alone.

        Args:
            memory_mb: The step's memory.
            cpus: The step's cores.
            is_stopped: Whether to give up waiting; the block then runs without a share.

        Yields:
            Whether the share is held.
        """
        ticket = {
            "id": secrets.token_hex(8),
            "pid": os.getpid(),
            "since": time.time(),
            "memory_mb": min(memory_mb, self.memory_mb),
            "cpus": min(cpus, self.cpus),
            "runs": False,
        }
        held = False
        try:
            while not (held := self._try(ticket)) and not is_stopped():
                pause(_POLL_SEC)
            yield held
        finally:
            with self._open() as tickets:
                tickets[:] = [t for t in tickets if t["id"] != ticket["id"]]

    def _try(self, ticket: dict[str, Any]) -> bool:
        """Enter the ticket as running and return True, or as waiting and return False."""
        with self._open() as tickets:
            # A worker that was killed left its tickets behind.
            others = [t for t in tickets if t["id"] != ticket["id"]]
            tickets[:] = [t for t in others if psutil.pid_exists(t["pid"])]
            running = [t for t in tickets if t["runs"]]
            fits = all(
                sum(t[key] for t in running) + ticket[key] <= total
                for key, total in (("memory_mb", self.memory_mb), ("cpus", self.cpus))
            )
            first = min((t["since"] for t in tickets if not t["runs"]), default=ticket["since"])
            has_turn = ticket["since"] <= first or time.time() - first < _PATIENCE_SEC
            runs = (fits and has_turn) or not running
            tickets.append({**ticket, "runs": runs})
            return runs

    @contextlib.contextmanager
    def _open(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the tickets of this machine under a lock, and write them back afterwards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"share-{socket.gethostname()}.json"
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            try:
                tickets = json.loads(file.read() or "[]")
            except ValueError:  # a worker was killed while it wrote
                tickets = []
            yield tickets
            file.seek(0)
            file.truncate()
            file.write(json.dumps(tickets))
            file.flush()
