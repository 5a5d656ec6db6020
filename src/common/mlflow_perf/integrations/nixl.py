"""NIXL's transfers: bytes, times and failures of an agent.

`track` wraps an agent of the job. The wrapper passes every call on, and records the end of each
transfer once, from NIXL's own telemetry.

    agent = track(nixl_agent("decode", nixl_agent_config(capture_telemetry=True)))
    handle = agent.initialize_xfer("READ", local, remote, "prefill")
    agent.transfer(handle)
    while agent.check_xfer_state(handle) == "PROC": ...
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mlflow_perf.core.extras import needing
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import MlflowPerfError, SourceUnavailableError
from mlflow_perf.recorders.current import record_transfers
from mlflow_perf.recorders.transfers import NixlKVConnectorStats, Telemetry

_logger = get_logger(__name__)


def agent(name: str, **config: Any) -> TrackedAgent:
    """Make an agent that captures telemetry and is tracked.

    Args:
        name: Name of the agent.
        **config: Passed on to `nixl_agent_config`.

    Raises:
        MissingDependencyError: If nixl is not installed.
    """
    with needing("nixl", "nixl"):
        api = import_module("nixl._api")
    return track(
        api.nixl_agent(name, api.nixl_agent_config(**{"capture_telemetry": True} | config))
    )


def track(
    agent: Any, name: str = "nixl", stats: NixlKVConnectorStats | None = None
) -> TrackedAgent:
    """Record an agent's transfers from now on.

    Args:
        agent: A `nixl_agent`; it needs telemetry.
        name: Name of the connector in the report: `transfers/<name>/…`.
        stats: Where to record; the current session's if not given.
    """
    return TrackedAgent(agent, record_transfers(name) if stats is None else stats)


def telemetry(agent: Any, handle: Any) -> Telemetry:
    """Return NIXL's telemetry of a finished transfer.

    Raises:
        SourceUnavailableError: If the agent has no telemetry; says how to turn it on.
    """
    try:
        result: Telemetry = agent.get_xfer_telemetry(handle)
    except Exception as error:
        # By name: importing NIXL's bindings only to name the class would load its libraries.
        if type(error).__name__ != "nixlNoTelemetryError":
            raise
        raise SourceUnavailableError(
            f"The NIXL agent {getattr(agent, 'name', '')!r} captures no telemetry: make it with "
            "nixl_agent_config(capture_telemetry=True), or set NIXL_TELEMETRY_ENABLE=y."
        ) from error
    return result


class TrackedAgent:
    """An agent whose transfers are recorded; every other attribute is the agent's own.

    Args:
        agent: A `nixl_agent`.
        stats: Where to record.

    Attributes:
        stats: Where its transfers are recorded.
    """

    def __init__(self, agent: Any, stats: NixlKVConnectorStats) -> None:
        self._agent = agent
        self._under_way: set[int] = set()
        self._silent = False
        self.stats = stats

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def transfer(self, handle: Any, *args: Any, **kwargs: Any) -> str:
        """Post a transfer as the agent does, and record it if it ends at once."""
        self._under_way.add(id(handle))
        return self._record_end(handle, lambda: self._agent.transfer(handle, *args, **kwargs))

    def check_xfer_state(self, handle: Any) -> str:
        """Return a transfer's state as the agent does, and record its end the first time."""
        return self._record_end(handle, lambda: self._agent.check_xfer_state(handle))

    def release_xfer_handle(self, handle: Any) -> Any:
        """Release a handle as the agent does; a transfer that is still running is not recorded."""
        self._under_way.discard(id(handle))
        return self._agent.release_xfer_handle(handle)

    def send_notif(self, *args: Any, **kwargs: Any) -> Any:
        """Send a notification as the agent does, and record if it fails."""
        try:
            return self._agent.send_notif(*args, **kwargs)
        except Exception:
            self.stats.record_failed_notification()
            raise

    def _record_end(self, handle: Any, call: Callable[[], str]) -> str:
        try:
            state = call()
        except Exception:
            self._record(handle, "ERR")
            raise
        if state != "PROC":
            self._record(handle, state)
        return state

    def _record(self, handle: Any, state: str) -> None:
        if id(handle) not in self._under_way:
            return
        self._under_way.discard(id(handle))
        if state != "DONE":
            self.stats.record_failed_transfer()
            return
        try:
            self.stats.record_transfer(telemetry(self._agent, handle))
        except Exception as error:  # noqa: BLE001 - the transfer succeeded: the job must see only that
            if not self._silent:
                self._silent = True
                reason = str(error) if isinstance(error, MlflowPerfError) else repr(error)
                _logger.warning("A NIXL transfer cannot be recorded. %s", reason)
