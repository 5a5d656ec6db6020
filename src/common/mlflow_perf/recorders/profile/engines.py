"""What a stack sampler is to a recording, whichever engine does it."""

from __future__ import annotations

from typing import Protocol

from mlflow_perf.model.profile import RawStacks


class StackEngine(Protocol):
    """Samples the stacks of one process, from `start` to `stop`.

    Attributes:
        name: Its name in the document.
    """

    name: str

    def start(self) -> None:
        """Begin.

        Raises:
            SourceUnavailableError: When the process cannot be sampled here, with the reason.
        """

    def stop(self) -> RawStacks:
        """End, and return what was sampled."""
