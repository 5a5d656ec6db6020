"""The path below which the server serves everything."""

from __future__ import annotations

import pytest

from mlflow_perf.web.static_prefix import read_static_prefix


@pytest.mark.parametrize(("value", "prefix"), [("/ml/", "/ml"), ("/a/b", "/a/b"), ("", "")])
def test_the_prefix_has_no_slash_at_its_end(
    value: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are appended to the prefix, so it must not end with a slash."""
    monkeypatch.setenv("_MLFLOW_STATIC_PREFIX", value)
    assert read_static_prefix() == prefix
