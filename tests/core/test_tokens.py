"""Names and folders that nobody else has."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from mlflow_perf.core import tokens
from mlflow_perf.core.tokens import make_folder, make_token


def test_tokens_are_random_digits() -> None:
    assert len(make_token(4)) == 8
    assert int(make_token(4), 16) >= 0
    assert make_token(8) != make_token(8)


def test_a_folder_is_new_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is taken is tried no second time."""
    names = iter(["taken", "taken", "free"])
    monkeypatch.setattr(tokens, "make_token", lambda _: next(names))
    assert make_folder("-z", "a-", tmp_path) == str(tmp_path / "a-taken-z")
    found = Path(make_folder("-z", "a-", tmp_path))
    assert found == tmp_path / "a-free-z"
    assert found.stat().st_mode & 0o777 == 0o700


def test_what_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        make_folder(dir=tmp_path / "nothing")
    monkeypatch.setattr(tokens, "make_token", lambda _: "same")
    make_folder(dir=tmp_path)
    with pytest.raises(FileExistsError):
        make_folder(dir=tmp_path)


def test_without_a_place_it_is_pythons_folder_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Path(make_folder()).parent == tmp_path
