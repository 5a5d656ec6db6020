"""Others' YAML is plain data, read in bounded time; anything else is one line with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.yaml_file import list_repeated, read_yaml

_BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{f'*a{i - 1},' * 9}]" for i in range(1, 12))])


def test_yaml_and_json_are_read(tmp_path: Path) -> None:
    """Both are taken, with the byte order mark that Windows writes; an empty file is None."""
    for text, data in (("\ufeffa: &x [1]\nb: *x", {"a": [1], "b": [1]}), ('{"a": 1}', {"a": 1})):
        (tmp_path / "a.yml").write_text(text, encoding="utf-8")
        assert read_yaml(tmp_path / "a.yml") == data
    (tmp_path / "a.yml").write_text("")
    assert read_yaml(tmp_path / "a.yml") is None


def test_a_key_that_comes_twice_is_found() -> None:
    """YAML takes the last one, and azure-ai-ml too: a copied step replaces the first."""
    text = "x: &x {k: 1}\njobs:\n  a: {<<: *x, <<: *x}\n  b: [{c: 1,\n  c: 2}]\n  a: 2\n"
    assert sorted(list_repeated(text)) == [(5, "c"), (6, "a")]
    assert list(list_repeated("")) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a: !!python/object/apply:os.system ['touch made']", "line 1 is no YAML"),
        (b"a: !!python/name:os.system", "could not determine a constructor"),
        (_BOMB.encode(), "stands for more than 100,000 values by its aliases"),
        (b"a: &a [*a]", "is nested too deeply"),
        (b"[" * 2000, "is nested too deeply"),
        (b"\n".join(b" " * i + b"a:" for i in range(120)), "is nested too deeply"),
        (b"a: \xff", "it is no text in UTF-8"),
        (b"a: \x00", "holds characters that no text has"),
        (b"a: [1", "line 1 is no YAML"),
        (b"a: " + b"x" * (5 << 20), "it has more than 4 MB"),
    ],
)
def test_hostile_yaml_is_one_line(data: bytes, reason: str, tmp_path: Path) -> None:
    """No tag runs code, no alias and no depth fills the memory; the message says which it was."""
    path = tmp_path / "a.yml"
    path.write_bytes(data)
    with pytest.raises(PipelineError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert reason in str(caught.value)
    assert str(caught.value).count(str(path)) == 1
    assert not Path("made").exists()


def test_a_pipe_is_no_yaml(tmp_path: Path) -> None:
    """A pipe in the folder of a pipeline does not keep the reader waiting."""
    os.mkfifo(tmp_path / "a.yml")
    with pytest.raises(PipelineError, match="it is a pipe"):
        read_yaml(tmp_path / "a.yml")
