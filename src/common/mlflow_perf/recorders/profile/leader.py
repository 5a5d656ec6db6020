"""Whether the thread without which the process is to end has ended, while ours still runs."""

from __future__ import annotations

import threading

from mlflow_perf.core.originals import open_file, os

_LOOK_SEC = 2.0
_EXIT_CODE = 49  # of the fields after the name, see proc(5)


class Leader:
    """The main thread of the process, or the thread that forked it.

    A process ends with its last thread. A forked one has none but the thread that forked it. A main
    thread may end alone, by the system call `exit`: then the process waited for ours for ever, and
    would have its exit code.
    """

    def __init__(self) -> None:
        main = threading._main_thread  # type: ignore[attr-defined]  # noqa: SLF001
        is_main = isinstance(main, threading._MainThread)  # type: ignore[attr-defined]  # noqa: SLF001
        self._thread = None if is_main else main
        self._looked = 0.0

    def has_ended(self, now: float) -> bool:
        """Return whether it has; the main thread is looked at now and then.

        Where ours is the only one beside a main thread that has ended, it ends the process as that
        has asked for.

        Args:
            now: Seconds of the monotonic clock.
        """
        if self._thread is not None:
            return not self._thread.is_alive()
        if now - self._looked < _LOOK_SEC:
            return False
        self._looked = now
        pid = os.getpid()
        try:
            with open_file(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] == b"Z" and len(os.listdir(f"/proc/{pid}/task")) == 2:
                os._exit(int(fields[_EXIT_CODE]) >> 8)  # noqa: SLF001 - public, see `os`
        except (OSError, LookupError, ValueError):  # another system
            pass
        return False
