"""Rules of recording NIXL's transfers, with real agents where NIXL is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_perf import NixlKVConnectorStats
from mlflow_perf.errors import MissingDependencyError, SourceUnavailableError
from mlflow_perf.integrations import nixl


class nixlNoTelemetryError(Exception):  # noqa: N801 - NIXL's own name
    """What the bindings raise when telemetry is off."""


class _Agent:
    """A fake agent with the answers of a test."""

    name = "fake"

    def __init__(self, *states: Any, telemetry: bool = True) -> None:
        self.states = list(states)
        self.telemetry = telemetry

    def _next(self) -> str:
        state = self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        return str(state)

    def transfer(self, handle: object, notif_msg: bytes = b"") -> str:
        return self._next()

    def check_xfer_state(self, handle: object) -> str:
        return self._next()

    def get_xfer_telemetry(self, handle: object) -> Any:
        if not self.telemetry:
            raise nixlNoTelemetryError("NIXL_ERR_NO_TELEMETRY")
        return SimpleNamespace(xferDuration=2000, postDuration=10, totalBytes=2**20, descCount=4)

    def send_notif(self, name: str, message: bytes) -> None:
        self._next()

    def release_xfer_handle(self, handle: object) -> str:
        return "released"


def _tracked(*states: Any, telemetry: bool = True) -> nixl.TrackedAgent:
    return nixl.track(_Agent(*states, telemetry=telemetry), stats=NixlKVConnectorStats())


def _figures(agent: nixl.TrackedAgent) -> tuple[float, float, float]:
    figures = agent.stats.figures()
    return (
        figures["num_successful"],
        figures["num_failed_transfers"],
        figures["num_failed_notifications"],
    )


def test_end_of_a_transfer_is_recorded_once() -> None:
    """However often a finished transfer is asked for, it counts once, with NIXL's telemetry."""
    agent, handle = _tracked("PROC", "PROC", "DONE", "DONE"), object()
    assert [agent.transfer(handle), *(agent.check_xfer_state(handle) for _ in range(3))] == [
        "PROC", "PROC", "DONE", "DONE",
    ]  # fmt: skip
    assert _figures(agent) == (1, 0, 0)
    assert agent.stats.figures()["avg_xfer_time_ms"] == 2


def test_transfer_that_ends_at_once() -> None:
    """A transfer that is done when it is posted counts, once for each time that it is posted."""
    agent, handle = _tracked("DONE", "DONE"), object()
    agent.transfer(handle)
    agent.transfer(handle, b"again")
    assert _figures(agent) == (2, 0, 0)


def test_failures_count_and_pass_through() -> None:
    """A failed transfer or notification counts, by its state or its exception, which passes."""
    agent = _tracked("ERR", "PROC", "ERR", KeyError("t"), "PROC", KeyError("s"), KeyError("n"))
    agent.transfer(object())
    handle = object()
    agent.transfer(handle)
    assert agent.check_xfer_state(handle) == "ERR"
    with pytest.raises(KeyError, match="t"):
        agent.transfer(object())
    agent.transfer(handle)
    with pytest.raises(KeyError, match="s"):
        agent.check_xfer_state(handle)
    with pytest.raises(KeyError, match="n"):
        agent.send_notif("b", b"x")
    assert _figures(agent) == (0, 4, 1)


def test_released_handle_is_not_recorded() -> None:
    """A transfer that is given up before its end counts neither as done nor as failed."""
    agent, handle = _tracked("PROC", "DONE"), object()
    agent.transfer(handle)
    assert agent.release_xfer_handle(handle) == "released"
    agent.check_xfer_state(handle)
    assert agent.stats.is_empty()


def test_everything_else_is_the_agents() -> None:
    """What the layer does not know, the agent answers."""
    agent = _tracked()
    assert agent.name == "fake"
    with pytest.raises(AttributeError):
        _ = agent.no_such_method


def test_agent_without_telemetry(caplog: pytest.LogCaptureFixture) -> None:
    """Without telemetry the transfers work, and one warning says how to turn it on."""
    agent = _tracked("DONE", "DONE", telemetry=False)
    assert [agent.transfer(object()), agent.transfer(object())] == ["DONE", "DONE"]
    assert agent.stats.is_empty()
    (warning,) = caplog.records
    assert "capture_telemetry=True" in warning.getMessage()
    with pytest.raises(SourceUnavailableError, match="capture_telemetry=True"):
        nixl.telemetry(_Agent(telemetry=False), object())


def test_missing_nixl_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nixl, making an agent raises and names what to install."""
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pytest.raises(MissingDependencyError, match="nixl"):
        nixl.agent("a")


_PROGRAM = """
import json, multiprocessing, os, sys, time
from multiprocessing.connection import Connection
from pathlib import Path
import numpy as np
from mlflow_perf import OperationMetrics
from mlflow_perf.recorders import current, spool, transfers
from mlflow_perf.recorders.collect import collect_transfers
from mlflow_perf.integrations import nixl

def memory(agent, size, fill):
    block = np.full(size, fill, dtype=np.uint8)
    agent.register_memory([(block.ctypes.data, size, 0, "")], "DRAM")
    return block

def prefill(pipe, size):
    agent = nixl.agent("prefill")
    block = memory(agent, size, 7)
    pipe.send((agent.get_agent_metadata(), block.ctypes.data))
    pipe.recv()

def decode(pipe, size, count, blocks):
    agent = nixl.agent("decode")
    block = memory(agent, size, 0)
    metadata, address = pipe.recv()
    name = agent.add_remote_agent(metadata)
    part = size // blocks
    def descriptors(base):
        return agent.get_xfer_descs([(base + i * part, part, 0) for i in range(blocks)], "DRAM")
    for _ in range(count):
        local, remote = descriptors(block.ctypes.data), descriptors(address)
        handle = agent.initialize_xfer("READ", local, remote, name)
        agent.transfer(handle)
        while agent.check_xfer_state(handle) == "PROC":
            time.sleep(0)
        agent.release_xfer_handle(handle)
    assert (block == 7).all()
    pipe.send("done")

if __name__ == "__main__":
    folder = spool.create(Path.cwd())
    current.activate(OperationMetrics(), folder=folder)
    here, there = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    ends = [spawn.Process(target=prefill, args=(here, 2**22)),
            spawn.Process(target=decode, args=(there, 2**22, 20, 64))]
    for end in ends: end.start()
    for end in ends: end.join()
    assert [end.exitcode for end in ends] == [0, 0]
    stats = collect_transfers(folder)["nixl"]
    print("RESULT", json.dumps([stats.reduce(), transfers.summary_metrics("nixl", stats)]))
"""


@pytest.mark.e2e
def test_real_transfers_between_two_processes(tmp_path: Path) -> None:
    """Twenty real transfers of 4 MiB in 64 blocks, DRAM to DRAM over UCX, reach the session."""
    if importlib.util.find_spec("nixl") is None:
        pytest.skip("nixl is not installed (pip install 'mlflow-perf[nixl]')")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    # Without ^ib, UCX's InfiniBand module ends the interpreter with a segmentation fault.
    result = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=os.environ | {"UCX_MODULES": "^ib"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    (told,) = [line for line in result.stdout.splitlines() if line.startswith("RESULT")] or [
        result.stdout + result.stderr
    ]
    reduced, metrics = json.loads(told.removeprefix("RESULT"))
    assert reduced["Num successful transfers"] == metrics["transfers/nixl/num_successful"] == 20
    assert reduced["Avg MB per transfer"] == 4
    assert metrics["transfers/nixl/throughput_mb_s"] > 0
    assert reduced["Avg xfer time (ms)"] > 0
    assert reduced["Avg number of descriptors"] == 64
    assert metrics["transfers/nixl/num_failed_transfers"] == 0
