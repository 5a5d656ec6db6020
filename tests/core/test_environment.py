"""Changes of the environment."""

from __future__ import annotations

import os

import pytest

from mlflow_perf.core.environment import set_variable


def test_a_variable_is_set_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing one that does not exist does nothing."""
    monkeypatch.delenv("MINE", raising=False)
    set_variable("MINE", "1")
    assert os.environ["MINE"] == "1"
    for _ in range(2):
        set_variable("MINE", None)
        assert "MINE" not in os.environ


def test_a_change_that_is_refused_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by an audit hook of the job; the block and its report go on."""

    class Refusing(dict[str, str]):
        def __setitem__(self, name: str, value: str) -> None:
            raise RuntimeError(f"no {name}")

    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", Refusing(os.environ))
        set_variable("MINE", "1")
        assert "MINE" not in os.environ
