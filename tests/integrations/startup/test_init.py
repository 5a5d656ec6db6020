"""The folder of the start-up code on the job's PYTHONPATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
        ([sys.executable], True),
        ([sys.executable, "train.py"], True),
        ([sys.executable, "-m", "train"], True),
        ([sys.executable, "-I", "train.py"], False),
        (["/opt/none/bin/python3", "train.py"], False),
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


def test_the_path_is_not_lent_to_a_script_with_the_name_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster's wrapper may have a default for it."""
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\nexport PYTHONPATH=${PYTHONPATH:-/opt/lib}\nexec python3 "$@"\n')
    script.chmod(0o755)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with startup.lend_to([str(script), "train.py"]):
        assert "PYTHONPATH" not in os.environ
