"""How a block ended, as its report says it."""

from __future__ import annotations

import pytest

from mlflow_perf.session.outcome import Outcome


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, Outcome()),
        (GeneratorExit(), Outcome()),
        (SystemExit(0), Outcome()),
        (SystemExit(None), Outcome()),
        (SystemExit(3), Outcome("FAILED", "SystemExit")),
        (ValueError("a secret"), Outcome("FAILED", "ValueError")),
        (KeyboardInterrupt(), Outcome("KILLED", "KeyboardInterrupt")),
    ],
)
def test_the_outcome_follows_from_the_exception(
    error: BaseException | None, expected: Outcome
) -> None:
    """The cause is the exception's name, never its message, which may contain anything."""
    assert Outcome.from_error(error) == expected
