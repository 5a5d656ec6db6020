"""Local paths of inputs, and paths that commands contain without quotes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.paths import choose_alias, find_local_path, require_plain_path


def test_a_relative_path_starts_at_the_pipeline_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's folder comes first; if nothing is there, the current folder is used."""
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "raw").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    base = tmp_path / "file"
    assert find_local_path("raw", base, where="x") == base / "raw"
    assert find_local_path("other", base, where="x") == tmp_path / "here" / "other"
    assert find_local_path("file:///a%20b", base, where="x") == Path("/a b")


def test_a_remote_path_is_refused() -> None:
    """The message names the step and what to do."""
    with pytest.raises(PipelineError, match=r"Step 'a' takes azureml:data:1 .* --on azureml"):
        find_local_path("azureml:data:1", Path(), where="Step 'a'")


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
