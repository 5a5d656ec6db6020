"""What a journal says of a recording besides its samples and its delivery."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class JournalFacts:
    """What recovery needs to know besides the samples and the delivery.

    Attributes:
        started: Unix time of the first sample; None while the block has not begun.
        counters: Names of the columns that are counters.
        facts: Figures that do not come from samples: `node_count`, `node_price`.
        oom_kills: Path of a cgroup's counter → how many processes the OOM killer had ended.
        spool: Name of the folder with the operations of the job's processes.
    """

    started: float | None = None
    counters: list[str] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    oom_kills: dict[str, int] = field(default_factory=dict)
    spool: str | None = None

    def list_known(self) -> dict[str, Any]:
        """Return those that are known, for JSON."""
        return {name: value for name, value in vars(self).items() if value is not None}
