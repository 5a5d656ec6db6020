"""`mlflow-perf run` at a real terminal: the command has it, and Ctrl-C is the command's own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.terminal import Terminal

if TYPE_CHECKING:
    from tests.faults.conftest import Fault, Faults

pytestmark = pytest.mark.e2e

COMMAND = """
import os, sys, time
def wait():
    # A signal between Python's last look and a long sleep would be heard after the sleep.
    for _ in range(600):
        time.sleep(0.1)
print("terminal", os.isatty(0), os.isatty(1), os.isatty(2), *os.get_terminal_size(), flush=True)
word = input("say: ")
if sys.argv[1] == "own":
    try:
        print("said", word, flush=True)
        wait()
    except KeyboardInterrupt:
        print("cleaned up", flush=True)
        sys.exit(9)
print("said", word, flush=True)
wait()
"""


@pytest.mark.parametrize(("how", "code"), [("dies", -signal.SIGINT), ("own", 9)])
def test_ctrl_c(faults: Faults, fault: Fault, tmp_path: Path, how: str, code: int) -> None:
    """The command has the terminal, its size and keys; it ends as by itself after Ctrl-C."""
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")},
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_PERF_DIR": str(faults.state),
        "MLFLOW_TRACKING_URI": faults.proxy.uri,
    }
    name = f"typed-{tmp_path.name}"
    wrapped = ["-m", "mlflow_perf", "run", "--name", name, "--interval", "0.1", "--"]
    argv = [sys.executable, *wrapped, sys.executable, "-S", "-c", COMMAND, how]
    terminal = Terminal(argv, environ)
    terminal.read_until("say: ")
    terminal.type("hello\n")
    terminal.read_until("said hello")
    terminal.type("\x03")
    assert terminal.wait() == code, terminal.screen
    assert "terminal True True True 97 31" in terminal.screen
    # What Python says of the interrupt is the command's; we say nothing of it.
    assert terminal.screen.count("Traceback") == (how == "dies")
    assert ("cleaned up" in terminal.screen) == (how == "own")
    (run,) = faults.named(name)
    assert run.info.status == "KILLED"
    assert run.data.tags["mlflow_perf.cause"] == "signal SIGINT"
    assert faults.has_all(run.info.run_id)
    assert f"run {run.info.run_id}" in terminal.screen
    assert faults.journals == []
    fault(f"Ctrl-C at a terminal, command {how}", f"logged, exit {code} passes", "none")
