"""The folder of the start-up code on the job's PYTHONPATH."""

from __future__ import annotations

import os

import pytest
from tests.alone import alone
from tests.interrupted import check_each_line

from mlflow_perf.integrations import startup


@alone
def test_the_path_is_as_before_wherever_an_alarm_raises() -> None:
    """Whoever removes itself takes back what it began to add."""
    os.environ["PYTHONPATH"] = "mine"

    def act() -> None:
        startup.add_to_path("one")
        startup.add_to_path("other")
        assert os.environ["PYTHONPATH"] != "mine"
        startup.remove_from_path("one")

    def remove() -> None:
        startup.remove_from_path("one")
        startup.remove_from_path("other")

    assert check_each_line(act, remove) > 10


@pytest.mark.parametrize("value", [None, ""])
def test_a_path_that_is_not_set_stays_so(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may have a default for it, or add to it: an empty part is the working folder."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if value is not None:
        monkeypatch.setenv("PYTHONPATH", value)
    startup.add_to_path("test")
    seen = os.environ.get("PYTHONPATH")
    startup.remove_from_path("test")
    assert (seen, os.environ.get("PYTHONPATH")) == (value, value)


@pytest.mark.parametrize(
    ("argv", "is_lent"),
    [
        (["python"], True),
        (["/opt/theirs/bin/python3.12", "train.py"], True),
        (["python3", "-m", "train"], True),
        (["python3", "-I", "train.py"], False),
        (["sh", "train.sh"], False),
        (["make"], False),
    ],
)
def test_the_path_is_lent_to_a_python_alone(
    argv: list[str], is_lent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a Python that reads our file takes it back."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with startup.lend_to(tuple(argv)):
        assert ("PYTHONPATH" in os.environ) == is_lent
    assert "PYTHONPATH" not in os.environ


@pytest.mark.parametrize("value", ["", "/mine"])
def test_a_path_that_is_set_is_lent_to_nobody(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sitecustomize` could not tell what it was."""
    monkeypatch.setenv("PYTHONPATH", value)
    with startup.lend_to(["python", "train.py"]):
        assert os.environ["PYTHONPATH"] == value
    assert os.environ["PYTHONPATH"] == value
