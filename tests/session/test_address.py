"""What a component is called where nobody names it."""

from __future__ import annotations

import sys

import pytest

from mlflow_perf.session.address import name_process


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("/usr/lib/python3/dist-packages/pytest/__main__.py", "pytest"),
        ("__main__.py", "python"),
        ("-c", "python"),
        ("", "python"),
    ],
)
def test_a_process_is_named_by_its_script_or_module(
    script: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m pytest` is no "python", which every component might be called."""
    monkeypatch.delitem(sys.modules, "_pytest")
    monkeypatch.setattr(sys, "argv", [script])
    assert name_process() == name


def test_a_worker_of_xdist_is_named_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started as `python -c`."""
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert name_process() == "pytest"


@pytest.mark.parametrize("arguments", [None, [], [b"train.py"], [5]])
def test_an_embedded_interpreter_is_named_python(
    arguments: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host may give no arguments, or what is no text."""
    monkeypatch.setattr(sys, "argv", arguments)
    assert name_process() == "python"
    monkeypatch.delattr(sys, "argv")
    assert name_process() == "python"
