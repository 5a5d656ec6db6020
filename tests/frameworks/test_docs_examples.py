"""The examples of the page "Training loops" that need a library run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.integrations import training

PAGE = Path(__file__).parents[2] / "docs" / "training-loops.md"


def test_the_loop_of_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plain loop has its parts, and the report of its run has them too."""
    pytest.importorskip("torch", reason="torch is not installed: run `make test-frameworks`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    shown = re.findall(
        r"<!-- example: torch -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    names: dict[str, Any] = {}
    try:
        exec(compile(shown[0], "docs", "exec"), names)
    finally:
        training.disable()
    loop = names["perf"].document.nodes[0].steps["step"]["ranks"]["0"]
    assert loop["step"]["count"] == 32
    assert {"input", "forward", "backward", "optimizer"} <= loop["parts"].keys()
