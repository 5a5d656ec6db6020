"""Local paths of inputs, and paths that commands contain without quotes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.paths import choose_alias, require_plain_path


def test_a_path_that_a_shell_splits_gets_an_alias(tmp_path: Path) -> None:
    """A plain path is its own alias; two files of the same name have different aliases."""
    assert choose_alias(tmp_path / "plain.csv", tmp_path) == tmp_path / "plain.csv"
    one, other = (choose_alias(tmp_path / f / "my data.csv", tmp_path) for f in ("a", "b"))
    assert one.name == other.name == "my_data.csv"
    assert one != other


def test_a_path_that_needs_quotes_is_refused() -> None:
    """A path without special characters is returned as it is."""
    assert require_plain_path(Path("/a/b-c_d.e"), where="x") == Path("/a/b-c_d.e")
    with pytest.raises(PipelineError, match="The work folder: the path '/a b' contains"):
        require_plain_path(Path("/a b"), where="The work folder")
