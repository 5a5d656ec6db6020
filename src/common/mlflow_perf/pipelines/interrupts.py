"""Signals while a pipeline runs: they stop it, but never while its store is being made."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

from mlflow_perf.tracking.new_store import is_unmade

_STOPPING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def replace_handler(number: int, handler: Any) -> Iterator[None]:
    """Handle a signal differently within a block; outside the main thread, change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def stopping_by_signal() -> Iterator[None]:
    """Let SIGTERM and a closed terminal raise `KeyboardInterrupt`, as Ctrl-C does.

    A signal that is ignored stays so, as under `nohup`.
    """
    with ExitStack() as stack:
        for number in _STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                is_hangup = number != signal.SIGTERM
                handler = interrupt_once if is_hangup else signal.default_int_handler
                stack.enter_context(replace_handler(number, handler))
        yield


def interrupt_once(number: int, _: object) -> NoReturn:
    """Raise for the first signal; a shell and the kernel both tell that their terminal is gone.

    Raises:
        KeyboardInterrupt: Always.
    """
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def making_store(uri: str) -> Iterator[None]:
    """Hold interrupts while MLflow makes a new local database: nobody can use one left half made.

    Args:
        uri: The store; if it exists, an interrupt is raised at once.

    Raises:
        KeyboardInterrupt: At the end of the block, when an interrupt came meanwhile.
    """
    held: list[int] = []
    with ExitStack() as stack:
        for number in (signal.SIGINT, *_STOPPING) if is_unmade(uri) else ():
            if signal.getsignal(number) is not signal.SIG_IGN:
                stack.enter_context(replace_handler(number, lambda came, _: held.append(came)))
        yield
    if held:
        raise KeyboardInterrupt
