"""What a fuzzer needs minutes for, in short: odd files of other systems and people."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import yaml
from tests.fuzz import foreign_targets as foreign

from mlflow_perf.errors import MlflowPerfError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.targets import Target

_INPUTS = 150


@pytest.mark.parametrize(
    "make", [foreign.histories, foreign.machines, foreign.environments, foreign.stacks]
)
def test_an_odd_file_is_read_or_is_one_line(
    make: Callable[[], Target], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A changed file gives an answer or one of our errors, whose message is one line."""
    monkeypatch.setattr(foreign, "_folder", lambda: tmp_path)
    monkeypatch.setattr("mlflow_perf.pipelines.environments._make", lambda *_: None)
    target, random = make(), Random(22)
    assert target.mutator is not None
    for number in range(_INPUTS):
        data = target.seeds[number % len(target.seeds)]
        with suppress(yaml.YAMLError, ValueError):  # it was broken before
            for _ in range(random.randrange(4)):
                data = target.mutator(data, random)
        message = _run(target, data)
        assert re.fullmatch(r"[^\x00-\x1f\x7f]{0,2100}", message), message


def _run(target: Target, data: bytes) -> str:
    """Return the message of our error; empty if there was none."""
    try:
        target.run(data)
    except MlflowPerfError as error:
        return str(error)
    return ""
