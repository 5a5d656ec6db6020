"""A cell of a notebook that is interrupted and run again, in a real kernel."""

from __future__ import annotations

import os
import queue
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.faults.conftest import Fault, Faults

pytestmark = pytest.mark.e2e

CELL = """
import time, mlflow_perf
with mlflow_perf.report("cell", interval=0.05) as perf:
    print("busy", perf.run_id, flush=True)
    time.sleep({seconds})
print("whole", perf.run_id, perf.summary["duration_sec"] > 0)
"""
LEFT = """
import os, signal, threading
print(sorted(t.name for t in threading._active.copy().values() if "perf" in t.name),
      signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, mlflow_perf.session.report.current())
"""


class Kernel:
    """A kernel and what its cells print.

    Args:
        manager: The kernel's manager.
        client: A started client of it.
    """

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager = manager
        self._client = client

    def run(self, code: str, *, interrupt_at: str = "") -> tuple[str, str]:
        """Run a cell and return what it printed and the name of the error that ended it, if any.

        Args:
            code: The cell.
            interrupt_at: Press "stop" once the cell has printed this.
        """
        asked = self._client.execute(code)
        printed, error = "", ""
        until = time.monotonic() + 90
        while time.monotonic() < until:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and content["name"] == "stdout":
                printed += content["text"]
                if interrupt_at and interrupt_at in printed:
                    interrupt_at = ""
                    self._manager.interrupt_kernel()
            elif kind == "error":
                error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, error
        raise AssertionError(f"the cell did not end: {printed}")


@pytest.fixture
def kernel(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a running kernel that reports to the server of the fault tests."""
    pytest.importorskip("ipykernel")
    manager_module = pytest.importorskip("jupyter_client.manager")
    for name, value in (("DIR", str(faults.state)), ("START_TIMEOUT", "60")):
        monkeypatch.setenv(f"MLFLOW_PERF_{name}", value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", faults.proxy.uri)
    manager, client = manager_module.start_new_kernel(
        kernel_name="python3", startup_timeout=90, env=dict(os.environ)
    )
    yield Kernel(manager, client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def test_a_cell_interrupted_and_run_again(faults: Faults, fault: Fault, kernel: Kernel) -> None:
    """The first run is KILLED with its figures, the second FINISHED; nothing is left behind."""
    printed, error = kernel.run(CELL.format(seconds=60), interrupt_at="busy")
    assert error == "KeyboardInterrupt"
    first = printed.split()[1]
    printed, error = kernel.run(CELL.format(seconds=0.2))
    assert error == ""
    assert printed.endswith("True\n")
    second = printed.split()[1]
    assert first != second
    for run_id, status in ((first, "KILLED"), (second, "FINISHED")):
        assert faults.run(run_id).info.status == status
        assert faults.has_all(run_id)
    left, error = kernel.run(LEFT)
    assert (left, error) == ("[] True None\n", "")
    assert faults.journals == []
    fault("notebook's cell interrupted", "logged, own run KILLED; runs again", "none")
