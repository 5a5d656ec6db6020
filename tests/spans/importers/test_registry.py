"""Recognising sources and searching folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.importers import load_sources as imports


def test_a_missing_source_makes_no_database(tmp_path: Path) -> None:
    """A misspelt source is an error before anything is made."""
    with pytest.raises(SpansError, match="no file or folder"):
        spans.import_sources(tmp_path / "none", tmp_path / "db")
    assert not (tmp_path / "db").exists()


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    """A pickle, such as DESC's tracing file, is not a source."""
    path = tmp_path / "parsl_tracing.pickle"
    path.write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(SpansError, match="not of a kind that can be imported"):
        spans.import_sources(path, tmp_path / "db")


@pytest.mark.parametrize("call", ["iterdir", "stat"])
def test_a_folder_that_cannot_be_read_is_named(
    call: str, tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be read, or loses files meanwhile, is an error that names it."""
    folder = make.recorded("text", tmp_path / "in")
    run = next(folder.rglob("parsl.log")).parent

    def refuse(_self: Path, *_more: Any, **_other: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    if call == "iterdir":
        monkeypatch.setattr(Path, "iterdir", refuse)
    else:
        monkeypatch.setattr(imports, "_stamp", refuse)
    with pytest.raises(SpansError, match="Permission denied"):
        spans.import_sources(run.parent if call == "iterdir" else run, tmp_path / "db")
