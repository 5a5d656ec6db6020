"""Calls of MLflow with a deadline, so that a dead server does not hang the job.

MLflow's own retries block one call for minutes. Here they continue in a daemon thread, and the
caller goes on after its deadline.
"""

from __future__ import annotations

import builtins
import datetime
import logging
import math
import mmap
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.held_name import holding
from mlflow_perf.core.late_signals import expect_long_exit
from mlflow_perf.core.originals import sys
from mlflow_perf.core.replaced import find_hidden, find_module_patch, is_mock
from mlflow_perf.core.restart_flag import handlers_interrupt_as_before
from mlflow_perf.core.threads import Lock
from mlflow_perf.core.uris import first_line, is_http, redact_password
from mlflow_perf.core.workspaces import read_workspace, working_in
from mlflow_perf.node.place import count_cpus
from mlflow_perf.readers.cgroup.groups import Groups, find_memory_room
from mlflow_perf.tracking.fork_guard import call_inside
from mlflow_perf.tracking.half_import import whole_imports
from mlflow_perf.tracking.idle_connections import closing_connections
from mlflow_perf.tracking.import_effects import changed_modules, import_fork_hooks, import_mlflow
from mlflow_perf.tracking.job_requests import find_double
from mlflow_perf.tracking.job_scripts import no_scripts
from mlflow_perf.tracking.kept_modules import keeping_brought
from mlflow_perf.tracking.own_functions import own_functions
from mlflow_perf.tracking.shared_libraries import is_own_call, own_call, uncached

T = TypeVar("T")

# What MLflow needs for one call, and for its import.
_CALL_BYTES, _IMPORT_BYTES = 64 << 20, 512 << 20
# Most of that address space is never touched: this is what the import adds to the memory.
_IMPORT_RESIDENT_BYTES = 160 << 20
_CALL_CPU_SEC, _IMPORT_CPU_SEC = 2.0, 10.0  # on a slow machine
# The import takes two seconds of a CPU: of many jobs that end together, each would be late.
_TURN_SEC = 20.0
_LOOK_SEC = 0.5  # how often to look what is wrong with a call
_POOL = "urllib3.connectionpool"
_one_loads = Lock()
_map = mmap.mmap  # a test may replace it meanwhile
_MOCKED = (builtins, "open"), *((time, one) for one in ("time", "time_ns", "monotonic", "sleep"))
_MOCKED_AT_IMPORT = tuple((subprocess, one) for one in ("run", "Popen", "check_output"))


def _keep_fault(record: logging.LogRecord) -> bool:
    """Keep why a request of a call of ours is repeated; what libraries log in it is not shown."""
    call = threading.current_thread()
    if isinstance(call, MlflowCall) and isinstance(record.args, tuple) and len(record.args) > 1:
        call.fault = redact_password(str(record.args[1]))
    # Threads of MLflow's log when no call goes on, too.
    return not is_own_call()


def _keep_database_fault(record: logging.LogRecord) -> bool:
    """Keep why a call of ours tries again to connect to a database."""
    call, error = threading.current_thread(), (record.args or (None,))[0]  # type: ignore[index]
    if isinstance(call, MlflowCall) and isinstance(error, Exception):
        call.fault = first_line(error)
    return True


def _keep_faults() -> None:
    # Not before MLflow is loaded: a job may disable the loggers that exist.
    logging.getLogger(_POOL).addFilter(_keep_fault)
    logging.getLogger("mlflow.store.db.utils").addFilter(_keep_database_fault)


def is_loaded() -> bool:
    """Return whether MLflow has been imported, by the job or by us."""
    module = sys.modules.get("mlflow")
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


def _find_replacer(kind: type) -> str:
    """Return the library that has put a class of its own in the place of Python's, or nothing."""
    by = kind.__module__.partition(".")[0]
    return "" if by in ("datetime", "socket", "socks") else by


def _find_cpu_room() -> float:
    """Return the seconds of CPU time that this process may still use; infinity without a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    limits = [n for n in resource.getrlimit(resource.RLIMIT_CPU) if n != resource.RLIM_INFINITY]
    return min(limits, default=math.inf) - time.process_time()


def refuse_replaced_network(uri: str) -> None:
    """Refuse to ask a tracking server where a library answers in its place, as in a test.

    The job would find our requests among its own. With gevent or eventlet sockets belong to the
    loop of a thread, and MLflow keeps connections for all threads: one that was opened beside the
    main thread would fail in the job's own.

    Args:
        uri: The store.

    Raises:
        RuntimeError: When it must not be asked from this thread.
    """
    if not is_http(uri):
        return
    is_main = threading.get_native_id() == threading.main_thread().native_id
    if by := "" if is_main else _find_replacer(socket.socket):
        raise RuntimeError(f"MLflow cannot be called beside the job: {by} replaces socket")
    if by := find_double():
        raise RuntimeError(f"MLflow cannot be called now: {by} answers the job's requests")


class MlflowCall(BackgroundCall[T]):
    """A call of MLflow in a daemon thread, started at once if there is room for it.

    Where MLflow has to be imported first, no more processes of this user and host do so at the same
    time than there are CPUs.

    Args:
        call: The function to call.
        name: Name of the thread, less the prefix `perf-`.
        workspace: The workspace of MLflow to work in; default: that of the caller.

    Attributes:
        fault: Why its latest connection broke; empty while none did.
        waits: Whether it waits because other processes import MLflow.

    Raises:
        RuntimeError: When the process may have no further thread. When too little memory or CPU
            time is left, which would end the process. When MLflow would be imported while the job
            has another `datetime`, as with freezegun, which crashes compiled modules, or sockets
            that belong to a thread, as with gevent, or hides a module. When a mock of the job's
            would count MLflow's calls.
    """

    def __init__(self, call: Callable[[], T], *, name: str, workspace: str | None = None) -> None:
        self.fault, self.waits = "", False
        self._awaited: object = None
        self._awaited_since = 0.0
        place = read_workspace() if workspace is None else workspace
        is_new = "mlflow" not in sys.modules
        for replaced in (datetime.datetime, socket.socket) if is_new else ():
            if by := _find_replacer(replaced):
                raise RuntimeError(
                    f"MLflow cannot be imported now: {by} replaces {replaced.__name__}"
                )
        if trap := find_hidden() or find_module_patch() if is_new else "":
            raise RuntimeError(f"MLflow cannot be imported now: {trap}")
        # Its import asks `uname -p`: the mock would count that, and Python keep its answer.
        for module, function in (*_MOCKED, *(_MOCKED_AT_IMPORT if is_new else ())):
            if is_mock(getattr(module, function)):
                raise RuntimeError(f"MLflow cannot be called now: a mock replaces {function}")
        private = (
            {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
        )
        try:
            _map(-1, _IMPORT_BYTES if is_new else _CALL_BYTES, **private).close()
        except (OSError, ValueError, MemoryError) as error:
            raise RuntimeError(f"too little memory is left to call MLflow ({error})") from None
        room = find_memory_room(Groups().find("memory")) if is_new else None
        if room is not None and room < _IMPORT_RESIDENT_BYTES:
            raise RuntimeError(
                f"too little memory is left to call MLflow: {room >> 20} MB in the control group"
            )

        def load_and_call() -> T:
            with (
                own_call(),
                own_functions(),
                keeping_brought(),
                whole_imports(),
                closing_connections(),
                changed_modules(),
                no_scripts(is_own_call),
            ):
                if is_new:
                    self._load_in_turn()
                _keep_faults()
                with working_in(place), uncached():
                    return call()

        if _find_cpu_room() < (_IMPORT_CPU_SEC if is_new else _CALL_CPU_SEC):
            raise RuntimeError(
                "too little CPU time is left to call MLflow, by the limit (ulimit -t)"
            )
        super().__init__(load_and_call, name=name)

    def _load_in_turn(self) -> None:
        user = os.getuid() if hasattr(os, "getuid") else 0
        turns = [f"loads MLflow {user} {number}" for number in range(count_cpus())]
        self.waits = True
        with _one_loads:
            if not is_loaded():
                with holding(turns, timeout_sec=_TURN_SEC):
                    self.waits = False
                    expect_long_exit()
                    with handlers_interrupt_as_before():
                        import_fork_hooks()
                        call_inside(import_mlflow)
        self.waits = False

    def find_fault(self) -> str:
        """Return why its latest request is being repeated; empty while none is.

        urllib3 logs broken connections, but the answers of servers only if the job debugs it. They
        are in the history of the request that waits for its next try.
        """
        if frame := self._find_frame(_POOL, "urlopen"):
            pool: Any = frame.f_locals.get("self")
            *_, last = getattr(frame.f_locals.get("retries"), "history", None) or (None,)
            if status := getattr(last, "status", None):
                return f"HTTP {status} from {pool.host}:{pool.port}"
        return self.fault

    def count_awaited_sec(self, now: float) -> float:
        """Return for how long its request, sent whole, has had no answer.

        Args:
            now: The time on the monotonic clock. It is seen from one look to the next.
        """
        frame = self._find_frame("http.client", "begin")
        before, self._awaited = self._awaited, frame and frame.f_locals.get("self")
        if self._awaited is None or self._awaited is not before:
            self._awaited_since = now
        return now - self._awaited_since

    def _find_frame(self, module: str, function: str) -> FrameType | None:
        """Return the innermost frame of a function in this thread."""
        frame = sys._current_frames().get(self.ident or 0)  # noqa: SLF001 - documented
        while frame is not None:
            if frame.f_code.co_name == function and frame.f_globals.get("__name__") == module:
                break
            frame = frame.f_back
        return frame

    def done_or_told(self, timeout_sec: float, what: str) -> bool:
        """Wait as `done_within`; the call that waits has this one's fault as its own meanwhile.

        Args:
            timeout_sec: Maximum seconds to wait.
            what: What the other call says, with the fault behind it.
        """
        until, caller = time.monotonic() + timeout_sec, threading.current_thread()
        while (left_sec := until - time.monotonic()) > 0:
            is_done = self.done_within(min(_LOOK_SEC, left_sec))
            if isinstance(caller, MlflowCall):
                known = () if is_done else (what, self.find_fault())
                caller.fault = ": ".join(filter(None, known))
            if is_done:
                return True
        return False

    def result(self, timeout_sec: float) -> T:
        """Return the call's result, or raise its exception; see `BackgroundCall.result`.

        Raises:
            TimeoutError: When the call is not done by then; it says what was wrong so far.
        """
        try:
            return super().result(timeout_sec)
        except TimeoutError as error:
            fault = self.find_fault() or ("" if is_loaded() else "MLflow was still being loaded")
            if not fault or not self.is_alive() or is_from_handler(error):
                raise
            raise TimeoutError(f"{error}: {fault}") from None


def _renew_lock() -> None:
    global _one_loads  # noqa: PLW0603 - another thread of the parent may have held it
    _one_loads = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
