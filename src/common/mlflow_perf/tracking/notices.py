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
