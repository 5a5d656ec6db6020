"""The training libraries are followed when the job imports them, and never imported by us."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from mlflow_perf.errors import SettingError
from mlflow_perf.integrations import lightgbm, training
from mlflow_perf.integrations._training_loops import IdentityMap
from mlflow_perf.recorders import current
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.steps import StepMetrics


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A booster of LightGBM's shape, in a module that is imported already."""

    class Booster:
        def update(self) -> str:
            return "updated"

        def eval_valid(self) -> str:
            return "evaluated"

    module = types.ModuleType("lightgbm.basic")
    module.Booster = Booster  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightgbm.basic", module)
    yield module
    training.disable()


def test_nothing_is_imported_before_the_job_does() -> None:
    """`enable` imports no library, and no module of ours that needs one."""
    code = (
        "import sys; from mlflow_perf.integrations import training; training.enable(); "
        "print(sorted({name.split('.')[0] for name in sys.modules} & set(training.LIBRARIES)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def check_three_updates(booster: Any) -> None:
    """Check that three updates are three steps, each with its evaluation."""
    current.activate(OperationMetrics(), folder=None)
    try:
        for _ in range(3):
            assert booster.update() == "updated"
            assert booster.eval_valid() == "evaluated"
    finally:
        recorder = current.deactivate().steps
    assert recorder is not None
    found = recorder.records()["boosting"][0]
    assert (found.step.count, found.parts["evaluation"].count) == (3, 3)


def test_a_library_that_is_there_is_followed_and_put_back(library: Any) -> None:
    """Updates are steps, with their evaluation, and results pass through."""
    original = library.Booster.update
    training.enable(["lightgbm"])
    booster = library.Booster()
    assert booster.update() == "updated"  # without a session
    check_three_updates(booster)
    training.disable()
    assert library.Booster.update is original


def test_a_model_that_lives_on_has_its_steps_in_its_run(library: Any) -> None:
    """A run that ends while its booster is kept has every iteration, the last one included."""
    training.enable(["lightgbm"])
    window, booster = StepMetrics(), library.Booster()
    current.activate(OperationMetrics(), folder=None)
    try:
        recorder = current.process.steps
        assert recorder is not None
        recorder.feed(window)
        for _ in range(3):
            booster.update()
        recorder.stop_feeding(window)
    finally:
        current.deactivate()
    assert window.records()["boosting"][0].step.count == 3


def test_functions_that_another_library_wrapped_stay(library: Any) -> None:
    """Taking back does not undo a patch that came after ours, such as `mlflow.autolog`'s."""
    training.enable(["lightgbm"])
    ours = library.Booster.update

    def theirs(booster: Any) -> Any:
        return ours(booster)

    library.Booster.update = theirs
    lightgbm.unfollow()
    assert library.Booster.update is theirs
    assert library.Booster().update() == "updated"


def test_a_model_that_cannot_be_hashed_trains_as_before(library: Any) -> None:
    """A job's own class of models may have no hash, and an `__eq__` that raises."""

    class Odd(library.Booster):  # type: ignore[misc]
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

    training.enable(["lightgbm"])
    check_three_updates(Odd())


def test_what_belongs_to_an_object_ends_with_it() -> None:
    """An object that gets the number of one that is gone has nothing of that one."""

    class Trainer:
        __hash__ = None  # type: ignore[assignment]

    found: IdentityMap[str] = IdentityMap()
    first, second = Trainer(), Trainer()
    assert found.add(first, "a") == found.get(first) == "a"
    assert found.get(second) is None
    found.add(second, "b")
    found.drop(second)
    assert found.get(second) is None
    del first
    assert not found._held


def test_a_wrong_name_is_refused() -> None:
    """The message lists the libraries."""
    with pytest.raises(SettingError, match=r"'keras' is no training library: give one of torch"):
        training.enable(["keras"])
