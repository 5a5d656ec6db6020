"""What is left of a package whose import failed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from mlflow_perf.tracking.half_import import whole_imports

PACKAGE = {
    "halfway/__init__.py": "import halfway.deep.part\nimport whole.part\nimport halfway.late",
    "halfway/deep/__init__.py": "",
    "halfway/deep/part.py": "",
    "halfway/late.py": "import hidden_module",
    "whole/__init__.py": "",
    "whole/part.py": "",
    "hidden_module.py": "",
}


def test_a_package_can_be_imported_whole_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a test hides a module for a moment; what was whole stays."""
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "hidden_module", None)
        with pytest.raises(ImportError), whole_imports():
            importlib.import_module("halfway")
    assert [name for name in sys.modules if "halfway" in name] == []
    kept = sys.modules["whole.part"]
    halfway = importlib.import_module("halfway")
    assert halfway.deep.part is sys.modules["halfway.deep.part"]
    assert sys.modules["whole.part"] is kept
