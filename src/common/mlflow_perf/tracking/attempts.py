"""Which runs of a workflow count where a task was tried again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

from mlflow_perf.model.document import BROKEN


class Attempt(Protocol):
    """A run with its status, and its start and end in Unix time; None where unknown."""

    @property
    def status(self) -> str | None: ...  # noqa: D102
    @property
    def started(self) -> float | None: ...  # noqa: D102
    @property
    def ended(self) -> float | None: ...  # noqa: D102


_A = TypeVar("_A", bound=Attempt)


def leave_out_retried(runs: Sequence[_A], identify: Callable[[_A], Hashable]) -> list[_A]:
    """Return the runs without those that ended badly and were tried again.

    A run was tried again where another one of its task began after it had ended.

    Args:
        runs: The runs of a workflow.
        identify: Returns what all attempts of a task share.
    """
    last = {identify(run): run for run in sorted(runs, key=lambda run: run.started or 0.0)}

    def was_retried(run: _A) -> bool:
        after = last[identify(run)]
        is_over = run.status in BROKEN and run.ended is not None
        return is_over and after is not run and (after.started or 0.0) >= (run.ended or 0.0)

    return [run for run in runs if not was_retried(run)]
