"""The memory of a step's attempts: waited for, limited, and raised after an out-of-memory kill."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.node.exit_cause import count_new_oom_kills, read_oom_counts
from mlflow_perf.pipelines.launch import Rank
from mlflow_perf.pipelines.memory_group import limit_memory
from mlflow_perf.pipelines.memory_share import MemoryShare
from mlflow_perf.pipelines.step_sizes import StepSize
from mlflow_perf.readers.cgroup.limits import owned

_USABLE = 0.9
"""Share of a machine's memory that its system and the runner leave to the steps."""

_MOST_RETRIES = 6


@dataclass
class Attempt:
    """One attempt of a step.

    Attributes:
        ranks: Its processes; where there is a limit, they enter its control group.
        is_limited: Whether the kernel enforces the size.
        was_killed: After its end: whether the kernel killed a process for lack of memory.
    """

    ranks: Sequence[Rank]
    is_limited: bool = False
    was_killed: bool = False


@dataclass
class SizedAttempts:
    """The sizes of a step's attempts on this machine.

    Attributes:
        size: What the step asks for; None if the pipeline runs without sizes.
        folder: Folder that all steps of the pipeline share.
        stop: The file whose appearance stops the pipeline.
        instances: Nodes of the step; they all run on this machine.
        sizes_mb: The memory of each attempt that had a size.
    """

    size: StepSize | None
    folder: Path
    stop: Path
    instances: int = 1
    sizes_mb: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._wanted = None if self.size is None else self.size.memory_mb
        self._held = contextlib.ExitStack()
        self._total = 0.0
        self._cores = 1.0
        if self.size is not None:
            machine = owned()
            self._total = self.size.budget_mb or _USABLE * (machine.mem_mb or 0.0)
            self._cores = machine.cores

    def __enter__(self) -> SizedAttempts:
        """Hold the first attempt's share of the machine; wait until others have left enough."""
        self._hold()
        return self

    def __exit__(self, *_error: object) -> None:
        """Give the share back."""
        self._held.close()

    def _hold(self) -> None:
        if self.size is None or not self._total:
            return
        share = MemoryShare(self.folder, self._total, self._cores)
        # A step of which nothing is known gets what a worker has on average.
        equal = self._total / max(1.0, self._cores)
        memory = equal if self._wanted is None else float(self._wanted * self.instances)
        cpus = float((self.size.cpus or 1) * self.instances)
        self._held.enter_context(share.take(memory, cpus, is_stopped=self.stop.exists))

    @contextlib.contextmanager
    def limit(self, ranks: Sequence[Rank]) -> Iterator[Attempt]:
        """Run an attempt in a control group of its size, where one can be made."""
        attempt = Attempt(ranks)
        if self.size is None:
            yield attempt
            return
        if self._wanted is not None:
            self.sizes_mb.append(self._wanted)
        # A launcher that starts the ranks on other machines needs no limit here.
        is_here = "PARSL_MPI_PREFIX" not in os.environ
        limit = self._wanted * self.instances if self._wanted is not None and is_here else None
        before = read_oom_counts()
        with limit_memory(limit) as group:
            if group is not None:
                attempt.ranks, attempt.is_limited = group.enter(ranks), True
            yield attempt
            kills = count_new_oom_kills(before) if group is None else group.count_kills()
            attempt.was_killed = kills > 0

    def grow(self) -> str:
        """Take more memory for the next attempt; return why there can be none, or nothing."""
        if self.size is None or self._wanted is None:
            return "its size is not known"
        most = int((self._total or 1e12) / self.instances)
        if self._wanted >= most:
            return f"it had {self._wanted:,} MB, all that this machine has for it"
        # A first guess may be far too small, and each attempt may take hours.
        is_last = len(self.sizes_mb) >= _MOST_RETRIES
        self._wanted = most if is_last else min(self.size.grow(self._wanted), most)
        self._held.close()
        self._hold()
        return ""

    def explain_kill(self, tried: Attempt) -> str:
        """Return what the size that we gave an attempt did to it; empty if nothing.

        Its command may end well without a process that was killed, but not with its results.
        """
        if not (tried.is_limited and tried.was_killed):
            return ""
        return f"a process of it was killed at the step's size of {self.sizes_mb[-1]:,} MB"

    @property
    def tags(self) -> dict[str, str]:
        """The sizes in MB of all attempts, and how the first one was found."""
        if self.size is None or not self.sizes_mb:
            return {}
        return {
            "mlflow_perf.sizes_mb": ",".join(map(str, self.sizes_mb)),
            "mlflow_perf.size_method": self.size.method[:500],
        }
