"""Lists and downloads single files of a run's artifacts, as MLflow does below its own functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import FileInfo


@contextmanager
def _as_mlflow_error() -> Iterator[None]:
    """Raise what a store's own library raises, or that it is missing, as an error of MLflow.

    Such libraries have errors of their own for credentials and servers, each another one.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError):
        raise
    except Exception as error:
        raise MlflowException(f"{type(error).__name__}: {error}") from error


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
        MlflowException: When the store does not give the file.
        OSError: As above, or when it cannot be written here.
    """
    with _as_mlflow_error():
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
        MlflowException: When the store does not answer.
        OSError: As above.
    """
    with _as_mlflow_error():
        try:
            tracking: Any = client._tracking_client  # noqa: SLF001 - see above
            listed = tracking._get_artifact_repo(run_id).list_artifacts  # noqa: SLF001 - see above
        except AttributeError:
            return list(client.list_artifacts(run_id, path))
        return list(listed(path))
