"""Modules that are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mlflow_perf
from mlflow_perf.core.submodules import import_unseen, load_submodule


def test_the_paths_of_the_docs_work_after_one_import() -> None:
    """`import mlflow_perf` is enough for each dotted path, and imports no other library."""
    code = (
        "import sys, mlflow_perf as m\n"
        "m.integrations.lightning.make_callback, m.integrations.textfile.TextfileExporter\n"
        "m.analysis.gate.judge, m.analysis.findings.findings_of, m.spans.connect\n"
        "assert not {'mlflow', 'lightning', 'torch'} & {*sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["repotr", "_version", "__wrapped__"])
def test_what_is_no_module_has_the_error_of_python(name: str) -> None:
    """A mistyped name is an AttributeError, as hasattr() and notebooks expect."""
    with pytest.raises(AttributeError, match=f"'mlflow_perf' has no attribute '{name}'"):
        load_submodule("mlflow_perf", name)
    assert not hasattr(mlflow_perf.integrations, name)


@pytest.mark.parametrize("is_profiled", [False, True])
def test_a_profiler_of_the_job_sees_nothing_of_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_profiled: bool
) -> None:
    """Without one, the module is left to whoever needs it."""
    (tmp_path / "seldom_used.py").write_text("def act(): pass\nact()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "seldom_used", raising=False)
    seen: list[str] = []
    before = sys.getprofile()
    sys.setprofile((lambda frame, *_: seen.append(frame.f_code.co_name)) if is_profiled else None)
    try:
        for name in ("seldom_used", "not_there"):
            import_unseen(name)
    finally:
        sys.setprofile(before)
    assert ("seldom_used" in sys.modules) == is_profiled
    assert "act" not in seen
