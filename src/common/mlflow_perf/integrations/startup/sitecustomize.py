"""Runs at the start of Python processes below a session, which puts this folder on PYTHONPATH.

Any interpreter of the job may run it, of any version, with or without mlflow_perf. So it uses only
syntax that all of them know, and then runs the user's own sitecustomize, which it would hide.
"""

import os
import sys


# Without annotations: the interpreter that runs this file may be a Python 2.
def _follow_proxystore(module):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    import importlib

    # Only here: it imports the recorder, which few processes need.
    importlib.import_module("mlflow_perf.integrations.proxystore").follow(module)


if os.environ.get("MLFLOW_PERF_SPOOL") and sys.version_info >= (3, 10):
    try:
        # Found in this folder, which is on the path: the package's own modules take longer to load.
        _startup = __import__("_mlflow_perf_startup")
        _startup.call("proxystore.store.metrics", _follow_proxystore)
        _startup.note_unseen_runs(os.environ["MLFLOW_PERF_SPOOL"])
        _startup.sample(os.environ["MLFLOW_PERF_SPOOL"])
    except Exception:  # noqa: BLE001, S110 - whatever is wrong here, the job goes on
        pass

_ours = sys.modules.pop(__name__, None)
_path = list(sys.path)
_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to load
sys.path[:] = [part for part in _path if os.path.abspath(part) != _here]  # noqa: PTH100 - likewise
try:
    # The user's own, now that ours is out of the way.
    __import__(__name__)
except ImportError:
    # The import system expects to find the module that it began to load.
    sys.modules[__name__] = _ours  # type: ignore[assignment] # it was there: this is it
