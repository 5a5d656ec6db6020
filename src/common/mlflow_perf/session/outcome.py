"""How a block or a command ended, as the status and the cause of its report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How a block or a command ended.

    Attributes:
        status: Status for a run of its own: `FINISHED`, `FAILED` or `KILLED`.
        cause: Why it ended early, in a few words; None where it ended by itself.
        elsewhere: The program that had its work started where it is not measured.
    """

    status: str = "FINISHED"
    cause: str | None = None
    elsewhere: str | None = None

    @classmethod
    def from_error(cls, error: BaseException | None) -> Outcome:
        """Return the outcome of a block that ended with an exception, or with none."""
        if error is None or isinstance(error, GeneratorExit):
            return cls()
        cause = type(error).__name__  # not the message, which may contain anything
        if isinstance(error, SystemExit):
            return cls() if error.code in (None, 0) else cls("FAILED", cause)
        return cls("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED", cause)
