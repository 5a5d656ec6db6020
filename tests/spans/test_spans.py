"""The public names of the package."""

from __future__ import annotations

import pytest

from mlflow_perf import spans


def test_the_public_names_are_there() -> None:
    """Each name of `__all__` loads; an unknown one is an AttributeError."""
    assert all(getattr(spans, name) is not None for name in spans.__all__)
    assert set(spans.__all__) <= set(dir(spans))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spans.nothing
