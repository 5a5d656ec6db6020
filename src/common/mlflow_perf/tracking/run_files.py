"""Lists and downloads single files of a run's artifacts, as MLflow does below its own functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import FileInfo


def fetch_file(client: MlflowClient, run_id: str, path: str, folder: Path) -> Path:
    """Download one file of a run's artifacts and return its local path.

    MLflow's own function first asks whether the path is a folder, and it draws a progress bar for
    each file on the standard error of a job.

    Args:
        client: A client of the store.
        run_id: The run.
        path: The file's path in the run; its parts must not lead to another folder.
        folder: The local folder; the file gets the same path below it.

    Raises:
        Exception: Whatever MLflow raises when the file cannot be read.
    """
    try:
        tracking: Any = client._tracking_client  # noqa: SLF001 - see above
        fetch = tracking._get_artifact_repo(run_id)._download_file  # noqa: SLF001 - see above
    except AttributeError:
        return Path(client.download_artifacts(run_id, path, str(folder)))
    local = folder / path
    local.parent.mkdir(parents=True, exist_ok=True)
    fetch(path, str(local))
    return local


def list_files(client: MlflowClient, run_id: str, path: str | None) -> list[FileInfo]:
    """Return what is in a folder of a run's artifacts.

    MLflow's own function reads the whole run twice, and asks for logged models, which no server
    before MLflow 3 knows.

    Raises:
        Exception: Whatever MLflow raises when the folder cannot be read.
    """
    try:
        tracking: Any = client._tracking_client  # noqa: SLF001 - see above
        listed = tracking._get_artifact_repo(run_id).list_artifacts  # noqa: SLF001 - see above
    except AttributeError:
        return list(client.list_artifacts(run_id, path))
    return list(listed(path))
