"""Tests that need a process of their own."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a fresh interpreter, whose process tree holds nothing else.

    Servers and browsers that other tests share come and go below the process of the tests. Fixtures
    reach the test by their `repr`: plain values and paths.
    """

    @functools.wraps(test)
    def run_in_child(**fixtures: Any) -> None:
        code = (
            f"from pathlib import *\nfrom {test.__module__} import {test.__name__} as test\n"
            f"test.__wrapped__(**{fixtures!r})"
        )
        root = Path(__file__).parents[1]
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return run_in_child
