"""Sentences for the user about runs that are read: they end no command."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from mlflow_perf.core.safe_log import get_logger

Tell = Callable[[str], None]
"""Takes a sentence for the user."""

_log = get_logger(__name__)

tell: ContextVar[Tell] = ContextVar("tell", default=_log.warning)
"""Is called for a run that was deleted, for each that a search leaves out as damaged, and for a
workflow of which some steps cannot be read."""


def explain_deleted(run_id: str) -> str:
    """Return that a run is deleted, and how it comes back."""
    return (
        f"The run {run_id} is deleted; `mlflow runs restore --run-id` brings it back, and"
        " `mlflow experiments restore` where its experiment is deleted."
    )
