"""What of a process's memory is its own, and its share of the rest (`smaps_rollup`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"^(Pss|Pss_Anon|Private_Clean|Private_Dirty|Anonymous): +(\d+) kB", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Shares:
    """A process's resident memory, by who uses it.

    Attributes:
        proportional_bytes: All of it, with shared pages divided among their users (PSS).
        private_bytes: The pages that no other process uses.
        anonymous_bytes: The pages that belong to no file and to no shared memory. A fork shares
            them with its parent until one of both writes to them.
        mapped_bytes: The part of `proportional_bytes` that is of files and shared memory; None
            where an old kernel does not tell.
    """

    proportional_bytes: int
    private_bytes: int
    anonymous_bytes: int
    mapped_bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> Shares | None:
        """Return the shares in the text of a `smaps_rollup`; None where it has none."""
        found = {name: int(size) * 1024 for name, size in _LINE.findall(text)}
        if "Pss" not in found:
            return None
        anonymous = found.get("Pss_Anon")
        mapped = None if anonymous is None else max(0, found["Pss"] - anonymous)
        private = found.get("Private_Clean", 0) + found.get("Private_Dirty", 0)
        return cls(found["Pss"], private, found.get("Anonymous", 0), mapped)
