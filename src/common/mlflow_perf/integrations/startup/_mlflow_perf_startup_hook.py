"""What each Python process below a session does at its start.

`mlflow_perf.pth` calls it, and `sitecustomize.py`. It imports as little as what it starts.
"""

from __future__ import annotations

import os
import sys

import _mlflow_perf_startup as _startup  # type: ignore[import-not-found]  # it is beside this file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_is_followed = False


def follow_process() -> None:
    """Let the session above this process know its runs, its ProxyStore metrics and its stacks.

    Both hooks may be in one process: the second call does nothing.
    """
    global _is_followed  # noqa: PLW0603 - of the process
    folder = os.environ.get("MLFLOW_PERF_SPOOL")
    if not folder or _is_followed:
        return

    def note_unseen_runs(_module: ModuleType) -> None:
        import importlib.util

        # The session above tells of an interpreter that has MLflow, but no mlflow-perf.
        if importlib.util.find_spec("mlflow_perf") is None:
            with open(f"{folder}/unseen-{os.getpid()}.spool", "w") as file:  # noqa: PTH123 - light
                file.write(sys.executable)

    _is_followed = True
    _startup.call("proxystore.store.metrics", _follow_proxystore)
    _startup.call("mlflow", note_unseen_runs)
    _startup.sample(folder)


def _follow_proxystore(module: ModuleType) -> None:
    import importlib

    # Only here: it imports the recorder, which few processes need.
    importlib.import_module("mlflow_perf.integrations.proxystore").follow(module)
