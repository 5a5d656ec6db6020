"""What a job tells a block by name: times, counters and facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import first_line
from mlflow_perf.errors import SettingError
from mlflow_perf.recorders import timing
from mlflow_perf.recorders.current import recorder
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.steps import loop, passes

_log = get_logger(__name__)


class _Recording(Protocol):
    """What has the operations of a block."""

    operations: OperationMetrics


class OperationCalls:
    """The calls with which a job records operations, in a block or outside of one."""

    def __init__(self) -> None:
        self._left_out = False

    def _find_recording(self) -> _Recording | None:
        """Return what records the block now; None for what records in this process."""
        raise NotImplementedError

    # The function itself: a method around it would cost a tenth of what a timer costs.
    time = staticmethod(timing.time)
    steps = staticmethod(passes.steps)
    part = staticmethod(loop.part)

    def add_time(self, name: str, time_ms: float, *, key: Any = None) -> None:
        """Record one duration of an operation, in milliseconds."""
        self._record(OperationMetrics.add_time, name, key, time_ms)

    def add_counter(self, name: str, value: float = 1, *, key: Any = None) -> None:
        """Add to a counter."""
        self._record(OperationMetrics.add_counter, name, key, value)

    def add_attribute(self, name: str, value: Any, *, key: Any = None) -> None:
        """Note a fact, such as the name of a data set; a later one replaces it."""
        self._record(OperationMetrics.add_attribute, name, key, value)

    def _record(self, add: Callable[..., object], name: str, key: Any, value: Any) -> None:
        recording = self._find_recording()
        operations = recorder() if recording is None else recording.operations
        if operations is None:
            return
        try:
            add(operations, name, key, value)
        # The job is running: a loss that became NaN must not end it, nor a key's own `__hash__`.
        except Exception as error:
            if is_from_handler(error):
                raise
            if not self._left_out:
                self._left_out = True
                said = error if isinstance(error, SettingError) else first_line(error)
                _log.warning("%s It is left out, and so are further ones like it.", said)
