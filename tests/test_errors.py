"""The errors that mlflow-perf raises on purpose."""

from __future__ import annotations

import pytest

from mlflow_perf import errors
from mlflow_perf.errors import MissingDependencyError, MlflowPerfError, StepFailedError


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "MlflowPerfError"])
def test_every_error_has_a_usual_base(name: str) -> None:
    """Code that does not know mlflow-perf catches its errors by a built-in class."""
    error = getattr(errors, name)
    assert issubclass(error, MlflowPerfError)
    assert issubclass(error, (ValueError, RuntimeError, ImportError))


def test_a_message_is_one_short_line() -> None:
    """A hostile file cannot steer the terminal or fill the log through a message."""
    text = str(errors.DocumentError("bad\x1b[2J\nfile " + "x" * 9000))
    assert text.isprintable()
    assert text.startswith("bad [2J file x")
    assert len(text) == 2001


def test_a_failed_step_has_a_line_of_its_own() -> None:
    """The error of several steps keeps one line for each."""
    error = StepFailedError("fit", "fit failed\nscore failed")
    assert (error.step, str(error)) == ("fit", "fit failed\nscore failed")


def test_a_missing_package_names_its_extra() -> None:
    """The message says what to install."""
    error = MissingDependencyError("matplotlib", "spans")
    assert error.extra == "spans"
    assert "pip install 'mlflow-perf[spans]'" in str(error)
