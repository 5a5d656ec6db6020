"""`mlflow-perf run` at a real terminal: the command has it, and Ctrl-C is the command's own."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


class Terminal:
    """A terminal of its own with a program at it.

    Args:
        argv: The program.
        environ: Its environment.
    """

    def __init__(self, argv: list[str], environ: dict[str, str]) -> None:
        self.screen = ""
        self._pid, self._handle = pty.fork()
        if self._pid == 0:
            os.execvpe(argv[0], argv, environ)
        import fcntl
        import termios

        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))

    def type(self, text: str) -> None:
        """Type at the keyboard."""
        os.write(self._handle, text.encode())

    def read_until(self, pattern: str, seconds: float = 60.0) -> None:
        """Return when the screen shows what matches; fail when it never does."""
        until = time.monotonic() + seconds
        while not re.search(pattern, self.screen):
            assert time.monotonic() < until, self.screen
            if select.select([self._handle], [], [], 0.1)[0]:
                self.screen += os.read(self._handle, 4096).decode()

    def wait(self) -> int:
        """Read to the end and return the exit code, -n for signal n."""
        try:
            while data := os.read(self._handle, 4096):
                self.screen += data.decode()
        except OSError:  # the program has closed the terminal
            pass
        os.close(self._handle)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


@pytest.mark.parametrize(("how", "code"), [("dies", 130), ("own", 9)])
def test_ctrl_c(faults: Faults, fault: Fault, tmp_path: Path, how: str, code: int) -> None:
    """The command has the terminal, its size and keys; after Ctrl-C the exit code is its own."""
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
    fault(f"Ctrl-C at a terminal, command {how}", f"logged, exit code {code} passes", "none")
