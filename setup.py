"""Packaging of mlflow-perf; the metadata stands in `pyproject.toml`."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_START = """
try:
    import sys
    sys.path.insert(0, {folder})
    try:
        import _mlflow_perf_startup_hook as hook
    finally:
        sys.path.remove({folder})
    hook.follow_process()
except Exception:
    pass
"""
_FOLDER = "mlflow_perf/integrations/startup"


def _write_hook(folder: str) -> str:
    """Return the line that each Python of the environment runs at its start.

    Below a session it loads the start-up code, and else does nothing.

    Args:
        folder: Python expression of the folder that has the code.
    """
    code = _START.format(folder=folder)
    return f"import os; os.environ.get('MLFLOW_PERF_SPOOL') and exec({code!r})\n"


class BuildWithHook(build_py):
    """Builds the package, and the file `mlflow_perf.pth` beside it."""

    def run(self) -> None:
        """Build both."""
        super().run()
        if self.editable_mode:  # what is installed then is the wheel's own folder
            place = Path(self.get_finalized_command("install").install_purelib)
            folder = repr(str(Path(__file__).parent.resolve() / "src" / "common" / _FOLDER))
        else:
            # `site`, which runs the line, has the folder of the file in this variable.
            place, folder = Path(self.build_lib), f"sitedir + '/{_FOLDER}'"
        (place / "mlflow_perf.pth").write_text(_write_hook(folder), encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Name the files that were built."""
        return [*super().get_outputs(include_bytecode), f"{self.build_lib}/mlflow_perf.pth"]


setup(cmdclass={"build_py": BuildWithHook})
