"""`start()` and `stop()`: a block without indentation, for flat scripts and notebooks."""

from __future__ import annotations

import sys
from typing import Any

from mlflow_perf.core.interrupt_flag import at_exit
from mlflow_perf.core.settings import Settings, arguments_of
from mlflow_perf.session.cell_magic import is_notebook
from mlflow_perf.session.report import Session, report

_started: Session | None = None


@arguments_of(Settings)
def start(**settings: Any) -> Session:
    """Begin a block that `stop` ends, here or on the object that this returns.

    `perf = mlflow_perf.start("train")`, `perf.stop()`. Without `stop` the block ends with the
    process: FAILED if an exception ends the script, else FINISHED. Another `start` ends the block
    before, so that a cell of a notebook can be run again. The arguments are those of `report()`.

    Raises:
        SettingError: When a setting is wrong; a `ValueError`.
        RunNotFoundError: When `run_id` names no run; a `ValueError`.
    """
    global _started  # noqa: PLW0603 - of the process
    session = report(**settings)
    stop()
    _started = session
    return session.__enter__()


def stop() -> None:
    """End the block that `start` began; without one this does nothing."""
    global _started
    session, _started = _started, None
    if session is not None:
        session.stop()


def _stop_at_exit() -> None:
    session = _started
    # In a notebook that is any cell's error, perhaps of hours ago.
    error = None if is_notebook() else getattr(sys, "last_value", None)
    if session is not None and session.is_open:
        session.__exit__(None if error is None else type(error), error, None)


at_exit(_stop_at_exit)
