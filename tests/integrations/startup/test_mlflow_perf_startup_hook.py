"""Rules of the hook that `mlflow_perf.pth` calls in each Python of an environment that has us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SHOW = """
import sys
print("_mlflow_perf_startup" in sys.modules, "_mlflow_perf_startup_hook" in sys.modules)
print([p for p in sys.path if p.endswith("startup")])
"""


def _run(script: str, *options: str, **environ: str) -> list[str]:
    variables = {
        name: value for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "MLFLOW_PERF_SPOOL")
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, *options, "-c", script], env=variables | environ, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert ended.stderr == ""
    return ended.stdout.splitlines()


def test_a_python_outside_of_sessions_loads_nothing() -> None:
    """Whoever installed us for another program pays nothing."""
    assert _run(_SHOW) == ["False False", "[]"]


@pytest.mark.parametrize("options", [(), ("-I",), ("-E",)])
def test_a_python_below_a_session_follows_itself(options: tuple[str, ...], tmp_path: Path) -> None:
    """It needs no variable that a job may set, and leaves the path as it was."""
    assert _run(_SHOW, *options, MLFLOW_PERF_SPOOL=str(tmp_path)) == ["True True", "[]"]


def test_both_hooks_begin_once(tmp_path: Path) -> None:
    """A Python with a path of its own has the other hook, too."""
    from mlflow_perf.integrations import startup

    assert startup.__file__ is not None
    folder = str(Path(startup.__file__).parent)
    script = """
import _mlflow_perf_startup as startup, _mlflow_perf_startup_hook as hook
began, startup.sample = [], lambda folder: began.append(folder)
hook.follow_process()
print(began)
"""
    path = f"{folder}{os.pathsep}{tmp_path}"
    lines = _run(
        f"import sys; sys.path.append({folder!r}){script}",
        PYTHONPATH=path, MLFLOW_PERF_SPOOL=str(tmp_path),
    )  # fmt: skip
    assert lines == ["[]"]


def test_a_broken_hook_says_nothing(tmp_path: Path) -> None:
    """A folder that was removed meanwhile costs the job no line."""
    import site

    hooks = [Path(place) / "mlflow_perf.pth" for place in site.getsitepackages()]
    (hook,) = [one for one in hooks if one.exists()]
    (tmp_path / "mlflow_perf.pth").write_text(
        hook.read_text().replace("integrations/startup", "integrations/gone")
    )
    script = f"import site; site.addsitedir({str(tmp_path)!r}); print('fine')"
    assert _run(script, "-S", MLFLOW_PERF_SPOOL=str(tmp_path)) == ["fine"]
