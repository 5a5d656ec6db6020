"""Children that are forked in the middle of imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_FORK = """
import os, sys, threading
import mlflow_perf

begun, goes_on = threading.Event(), threading.Event()
thread = threading.Thread(target=__import__, args=["outer"])
thread.start()
begun.wait()
if not (child := os.fork()):
    goes_on.set()
    import outer
    os._exit(outer.whole + outer.inner.whole)
_, status = os.waitpid(child, 0)
goes_on.set()
thread.join()
import outer
print(os.waitstatus_to_exitcode(status), outer.whole + outer.inner.whole)
"""
_WAIT = """
from __main__ import begun, goes_on
begun.set()
goes_on.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("slow", ["outer", "inner"])
def test_a_child_imports_what_another_thread_of_its_parent_was_importing(
    slow: str, tmp_path: Path
) -> None:
    """It would wait for ever for that thread, which it does not have."""
    for name, rest in (("outer", "import inner\n"), ("inner", "")):
        code = (_WAIT if name == slow else "") + rest + "whole = 2\n"
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    script = tmp_path / "fork.py"
    script.write_text(_FORK, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "4 4\n"
