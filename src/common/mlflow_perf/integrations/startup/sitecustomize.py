"""Runs at the start of Python processes below a session, which puts this folder on PYTHONPATH.

Any interpreter of the job may run it, of any version, with or without mlflow_perf. So it uses only
syntax that all of them know, and then runs the user's own sitecustomize, which it would hide.
"""

import os
import sys

_path = list(sys.path)
_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to load

if os.environ.get("MLFLOW_PERF_SPOOL") and sys.version_info >= (3, 10):
    try:  # noqa: SIM105 - contextlib takes longer to load
        # Found in this folder, which is on the path: the package's own modules take longer to load.
        __import__("_mlflow_perf_startup_hook").follow_process()
    except Exception:  # noqa: BLE001, S110 - whatever is wrong here, the job goes on
        pass

# Lent to this process alone: the job finds it unset, as it would without us.
if os.environ.get("PYTHONPATH") == _here:
    del os.environ["PYTHONPATH"]

_ours = sys.modules.pop(__name__, None)
sys.path[:] = [part for part in _path if os.path.abspath(part) != _here]  # noqa: PTH100 - likewise
try:
    # The user's own, now that ours is out of the way.
    __import__(__name__)
except ImportError as error:
    if getattr(error, "name", __name__) != __name__:  # there is one, which misses another module
        raise
    # The import system expects to find the module that it began to load.
    sys.modules[__name__] = _ours  # type: ignore[assignment] # it was there: this is it
