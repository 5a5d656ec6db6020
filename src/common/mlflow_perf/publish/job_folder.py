"""What MLflow does relative to a job's working folder, for `recover`, which runs elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from mlflow_perf.core.uris import find_local_database
from mlflow_perf.errors import DocumentError
from mlflow_perf.tracking.client import open_client
from mlflow_perf.tracking.new_store import is_unmade, making_alone
from mlflow_perf.tracking.run_handle import RunHandle

_TIMEOUT_SEC = 120.0
# A file `secrets.py` in the folder is the job's, and no part of Python.
_BEGIN = """
import os, sys
sys.path = [path for path in sys.path if path]
import mlflow
os.chdir(sys.argv[1])
"""
_FIND = "print(mlflow.get_tracking_uri())"
_MAKE = """
client, name = mlflow.MlflowClient(sys.argv[2]), sys.argv[3]
client.search_experiments(max_results=1)
if name and client.get_experiment_by_name(name) is None:
    client.create_experiment(name)
"""


def settle_store(run: RunHandle) -> str:
    """Let a run's store be the one that its job would have found or made; return its address.

    Where nothing names a store, MLflow has one in each folder. What is made in a local store keeps
    its artifacts in the folder where it is made.

    Args:
        run: Where a report goes; one of an earlier version does not name its folder.

    Raises:
        DocumentError: The folder is not there, or MLflow does not answer.
        Exception: Whatever MLflow raises when the store does not answer.
    """
    if not run.folder:
        return run.tracking_uri
    is_there = Path(run.folder).is_dir()
    if not run.tracking_uri:
        if not is_there:
            raise DocumentError(
                f"it goes to MLflow's default store of {run.folder}, which is not there; bring "
                "that back, or delete the journal"
            )
        run.tracking_uri = find_default_store(run.folder)
    uri, name = run.tracking_uri, run.experiment_name if run.experiment_id is None else None
    if not is_there or find_local_database(uri) is None:
        return uri
    if is_unmade(uri) or (name and open_client(uri).get_experiment_by_name(name) is None):
        make_place(run.folder, uri, name or "")
    return uri


@lru_cache
def find_default_store(folder: str) -> str:
    """Return the store that MLflow has in a folder where nothing names one.

    Raises:
        DocumentError: MLflow does not answer.
    """
    return _ask_mlflow(folder, _FIND).splitlines()[-1]


def make_place(folder: str, uri: str, name: str) -> None:
    """Make a local store and an experiment in it, where they do not exist, as a job in a folder.

    Args:
        folder: The working folder.
        uri: The store.
        name: The experiment; empty for none.

    Raises:
        DocumentError: MLflow does not answer.
    """
    with making_alone(uri):
        _ask_mlflow(folder, _MAKE, uri, name)


def _ask_mlflow(folder: str, program: str, *arguments: str) -> str:
    """Return what a program of MLflow prints in a folder.

    Raises:
        DocumentError: It fails, or takes too long.
    """
    environ = {**os.environ, "MLFLOW_PERF_AUTOLOG": "false"}
    environ.pop("MLFLOW_TRACKING_URI", None)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _BEGIN + program, folder, *arguments],
            env=environ, capture_output=True, text=True, timeout=_TIMEOUT_SEC, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().rpartition("\n")[2]
        raise DocumentError(f"MLflow does not find its store in {folder}: {said}") from error
    return done.stdout
