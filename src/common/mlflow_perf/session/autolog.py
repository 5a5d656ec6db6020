"""`autolog()`: every MLflow run of this process gets its report, without a line around its body."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.interrupt_flag import at_exit
from mlflow_perf.core.own_cost import bring
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.settings import SETTINGS, Settings, read_setting
from mlflow_perf.core.threads import RLock
from mlflow_perf.core.uris import first_line
from mlflow_perf.errors import SettingError
from mlflow_perf.integrations import training
from mlflow_perf.session.cell_magic import is_notebook
from mlflow_perf.session.run_recorder import GRACE_SEC, RunRecorder, judge_exit
from mlflow_perf.tracking.run_events import listen, stop_listening

_log = get_logger(__name__)
_autolog: RunRecorder | None = None
# One thread switches at a time; a signal handler of the job may switch inside another switch.
_switching = RLock()


def autolog(*, disable: bool = False, **settings: Any) -> None:
    """Report every MLflow run that this process starts from now on, as if its body were wrapped.

    `MLFLOW_PERF_AUTOLOG=true` in the environment does the same without a line of code. A call with
    other settings changes the settings of runs that start afterwards.

    Args:
        disable: Whether to end it: no run, not even an open one, gets a report then.
        settings: Those of `report()`; `run_id`, `scrape`, `textfile`, `opentelemetry`, `profile`
            and `profile_engine` are for a block or a command, and have no effect here.

    Raises:
        SettingError: When a setting is wrong; a `ValueError`.
        TypeError: When there is no such setting.
    """
    if unknown := settings.keys() - SETTINGS.keys():
        raise TypeError(f"autolog() got an unexpected keyword argument {unknown.pop()!r}")
    if "run_id" in settings:
        raise SettingError("autolog() reports to each run of the process, so it takes no run_id.")
    if disable or read_setting("disable"):
        _switch_off()
    else:
        _switch_on(replace(Settings.load(**settings), run_id=None))


def _switch_off() -> None:
    global _autolog
    with _switching:
        ended, _autolog = _autolog, None
        if ended is not None:
            stop_listening(ended)
            ended.stop(lambda _: None, limit_sec=GRACE_SEC)
            training.disable()


def _switch_on(settings: Settings) -> None:
    global _autolog  # noqa: PLW0603 - MLflow is told of one listener for the process
    with bring():
        # Before the lock: a thread that imports MLflow takes the lock during that import.
        import mlflow  # noqa: F401 - `listen` needs it

        with _switching:
            fresh = None if _autolog is not None else RunRecorder(settings)
            if _autolog is not None:  # also one that a signal handler has just made
                _autolog.change(settings)
            elif fresh is not None:
                _autolog = fresh
                training.enable()
                listen(fresh)
                if _autolog is not fresh:  # a signal handler has just switched it off
                    stop_listening(fresh)


def switch_on() -> RunRecorder | None:
    """Switch on what `MLFLOW_PERF_AUTOLOG` asks for; a wrong setting costs the reports only."""
    try:
        autolog()
    except Exception as error:  # noqa: BLE001 - the job did not call us
        _log.warning("MLFLOW_PERF_AUTOLOG has no effect: %s", first_line(error))
    return _autolog


def finish_at_exit() -> None:
    """Finish the runs that are open when the interpreter exits."""
    if _autolog is not None:
        try:
            # MLflow ends it, as FINISHED even after an error. In a notebook that is any cell's
            # error, perhaps of hours ago.
            error = None if is_notebook() else getattr(sys, "last_value", None)
            _autolog.stop(lambda one: judge_exit(one, error))
        except Exception as error:
            if is_from_handler(error):
                raise
            _log.warning("The performance of a run is not reported: %s", first_line(error))


def _renew_in_child() -> None:
    global _switching  # noqa: PLW0603 - a process has one
    _switching = RLock()  # another thread of the parent may hold the old one
    if _autolog is not None:
        _autolog.renew_lock()


at_exit(finish_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_in_child)
