"""A process that Ctrl-C ended dies of SIGINT, whatever is executed at its exit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ENDS = """
import atexit, os, sys, time
from mlflow_perf.core.interrupt_flag import at_exit
at_exit(lambda: eval("1"))
atexit.register(eval, "1")
"""
CTRL_C = "signal.raise_signal(signal.SIGINT); time.sleep(9)"
HANDLED = """
import code
console = code.InteractiveConsole({})
console.runcode(compile("raise KeyboardInterrupt", "<cell>", "exec"))
"""


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (f"import signal; {CTRL_C}", -signal.SIGINT),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("class Mine(KeyboardInterrupt): pass\nraise Mine", 1),
        ("raise ValueError", 1),
        ("sys.exit(7)", 7),
        (HANDLED, 0),
        (f"{HANDLED}\nsys.exit(3)", 3),
    ],
)
@pytest.mark.parametrize("way", ["file", "module", "text"])
def test_only_an_unhandled_ctrl_c_ends_the_process_so(
    way: str, job: str, expected: int, tmp_path: Path
) -> None:
    """A shell in Python survives it, and sets the same values of `sys`."""
    (tmp_path / "job.py").write_text(f"{ENDS}\n{job}")
    ways = {"file": ["job.py"], "module": ["-m", "job"], "text": ["-c", f"{ENDS}\n{job}"]}
    done = subprocess.run(
        [sys.executable, *ways[way]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == expected, done.stderr
