"""The job's own profiler, which must not count what a thread of ours does.

From Python 3.12 on, cProfile is told of the calls of all threads of the interpreter, and takes each
return in a thread of ours for the end of one of the job's functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import repeat
from operator import is_not
from typing import Any

from mlflow_perf.core.originals import sys

monitoring: Any = getattr(sys, "monitoring", None)
"""The module `sys.monitoring`; None before Python 3.12."""


def look_for_profilers() -> Iterator[bool]:
    """Return an iterator without end that says whether a profiler is on; all of it is in C."""
    if monitoring is None:
        return repeat(False)
    tools = map(monitoring.get_tool, repeat(monitoring.PROFILER_ID))
    return map(is_not, tools, repeat(None))


class JobProfiler:
    """The profiler of the job; an interpreter has one at a time.

    Args:
        meet: Returns what is entered around the moment at which a profiler comes: it waits until
            the thread of ours is at rest. Called in the job's thread.
    """

    def __init__(self, meet: Callable[[], AbstractContextManager[object]]) -> None:
        self._meet, self._monitoring = meet, monitoring
        self._original: Any = None
        self._stand_in: Any = None

    def watch(self) -> None:
        """Let each profiler that is switched on from now on wait for the meeting."""
        if self._monitoring is None or self._original is not None:
            return
        original, profiler = self._monitoring.use_tool_id, self._monitoring.PROFILER_ID

        # cProfile looks this function up in the module, and calls it before it gets any event.
        @functools.wraps(original)
        def use_tool_id(*args: Any) -> Any:
            if self._original is None or args[:1] != (profiler,):
                return original(*args)
            with self._meet():
                return original(*args)

        self._original, self._stand_in = original, use_tool_id
        self._monitoring.use_tool_id = use_tool_id

    def restore(self) -> None:
        """Put the interpreter's function back, unless somebody has replaced ours."""
        original, self._original = self._original, None
        if original is not None and self._monitoring.use_tool_id is self._stand_in:
            self._monitoring.use_tool_id = original
