"""From a run id, a file or a folder to a document. Imports addresses, document and errors."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from mlflow_perf.core.uris import first_line, is_refused, local_database, redact_password
from mlflow_perf.errors import DocumentError, RunNotFoundError
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.tracking.many import read_all
from mlflow_perf.tracking.paging import pages
from mlflow_perf.tracking.perf_run import PARENT_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["RunRef", "is_run_id", "load", "read_documents", "save_nodes"]

RunRef = str | os.PathLike[str]
"""A run id (`runs:/<id>` too), a path to a document, or a folder of `node-*.json`."""

ARTIFACT_PATH = "perf"
"""Folder of a run's artifacts in which the documents lie."""

_NAME_THE_STORE = "Set MLFLOW_TRACKING_URI to the store or server that holds the runs."
_THREADS = 8
_RUN_ID = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_-]{0,255}")
# What tables show of an id, or more of it.
_BEGINNING = re.compile(r"[0-9a-f]{8,31}")
_NODE_FILES = "node-*.json"
_OTHER_FOLDERS_MAX = 20


def is_run_id(source: RunRef) -> bool:
    """Return whether a source names an MLflow run and not a file that exists."""
    if not isinstance(source, str) or not _RUN_ID.fullmatch(bare_id(source)):
        return False
    if source.startswith("/"):
        return False
    return source.startswith("runs:/") or not Path(source).exists()


def bare_id(source: RunRef) -> str:
    """Return the run id in `runs:/<id>` or `<id>`."""
    return str(source).removeprefix("runs:/").strip("/")


def load(source: RunRef) -> PerfDocument:
    """Return the performance document of a run, of a file or of a folder of `node-*.json`.

    Args:
        source: Run id, path to a document, or folder (also one that holds `perf/`).

    Raises:
        RunNotFoundError: When there is no such run or file, or it holds no performance data.
        DocumentError: When a file is not a document that this version reads.
    """
    return reduce(PerfDocument.merge, read_documents(source))


def read_documents(source: RunRef, *, processes: int = 1) -> Iterator[PerfDocument]:
    """Yield the documents of a source one by one, as `load` would merge them; at least one.

    A job on a thousand nodes has half a gigabyte of curves, one file per node: what needs only one
    at a time takes them from here.

    Args:
        source: Run id, path to a document, or folder (also one that holds `perf/`).
        processes: Processes to read many files in; columns that come from another one are arrays.
            A program that asks for more than one must guard its main module as
            `multiprocessing` says.

    Raises:
        RunNotFoundError: When there is no such run or file, or it holds no performance data.
        DocumentError: When a file is not a document that this version reads.
    """
    if not is_run_id(source):
        yield from read_all(_files_at(Path(source)), _from_file, processes=processes)
        return
    client = new_client()
    run = fetch_run(client, bare_id(source))
    with _artifacts(client, run) as folder:
        if folder is None:
            raise RunNotFoundError(_no_document(client, run))
        yield from read_all(_files_at(folder), _from_file, processes=processes)


def save_nodes(document: PerfDocument, folder: Path) -> list[Path]:
    """Write one `node-<n>.json` per node into a folder, which is made, and return their paths.

    Raises:
        OSError: When the place cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [
        PerfDocument({index: node}, document.extra).save(folder / f"node-{index}.json")
        for index, node in sorted(document.nodes.items())
    ]


def _from_file(path: Path) -> PerfDocument:
    try:
        return PerfDocument.from_json(path.read_bytes())
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error
    except OSError as error:
        raise RunNotFoundError(f"{str(path)!r} cannot be read: {error.strerror}.") from error


def _files_at(path: Path) -> list[Path]:
    """Return the file, or the node files of a folder by their numbers."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RunNotFoundError(f"There is no run, file or folder {str(path)!r}.")
    for place in (path, path / ARTIFACT_PATH):
        files = sorted(place.glob(_NODE_FILES), key=lambda file: (len(file.name), file.name))
        if files:
            return files
    raise RunNotFoundError(f"The folder {str(path)!r} holds no {_NODE_FILES}.")


def merge_without_curves(documents: Iterable[PerfDocument]) -> PerfDocument:
    """Return documents merged, without the curves: summaries, operations and facts are left."""
    whole = PerfDocument()
    for document in documents:
        for node in document.nodes.values():
            node.reports = {}
        whole = whole.merge(document)
    return whole


def new_client() -> MlflowClient:
    """Return a client of the tracking store that MLflow's own settings name.

    Raises:
        RunNotFoundError: When there is no store, it does not listen, or MLflow cannot use it.
    """
    import mlflow

    uri = mlflow.get_tracking_uri()
    unusable = f"The tracking store {redact_password(uri)} cannot be used:"
    file = local_database(uri)
    # MLflow would make a store of every typing error.
    if file is not None and not (file.is_file() and file.stat().st_size):
        raise RunNotFoundError(f"{unusable} there is no {file.absolute()}. {_NAME_THE_STORE}")
    if is_refused(uri):
        raise RunNotFoundError(f"{unusable} nothing listens there. {_NAME_THE_STORE}")
    try:
        return mlflow.MlflowClient()
    # MLflow's own, a database's, that of a driver which is not installed.
    except Exception as error:
        raise RunNotFoundError(f"{unusable} {first_line(error)}") from error


def fetch_run(client: MlflowClient, run_id: str) -> Run:
    """Return a run of MLflow.

    Args:
        client: Of the store.
        run_id: Its id, or the beginning that tables show, if only one run has it.

    Raises:
        RunNotFoundError: When it does not exist or the store does not answer.
    """
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        begun = _that_begin_with(client, run_id) if _BEGINNING.fullmatch(run_id) else []
        if len(begun) == 1:
            return begun[0]
        if begun:
            raise RunNotFoundError(
                f"More than one run begins with {run_id!r}: give more of its id."
            ) from None
        raise RunNotFoundError(explain_failure(f"The run {run_id!r}", error)) from error


def _that_begin_with(client: MlflowClient, beginning: str) -> list[Run]:
    """Return runs whose ids begin so, two at most; none where the store cannot search for it."""
    from mlflow.exceptions import MlflowException

    query = f"attributes.run_id LIKE '{beginning}%'"
    try:
        return list(client.search_runs(experiment_ids(client), query, max_results=2))
    except MlflowException:
        return []


def experiment_ids(client: MlflowClient) -> list[str]:
    """Return the ids of all experiments.

    Raises:
        MlflowException: When the store does not answer.
    """
    return [experiment.experiment_id for experiment in pages(client.search_experiments)]


def explain_failure(what: str, error: Exception) -> str:
    """Return the sentence that says why something cannot be read from the tracking store."""
    import mlflow

    where = mlflow.get_tracking_uri()
    if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
        return f"{what} does not exist in the tracking store {where}, nor as a file."
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return redact_password(f"{what} cannot be read from the tracking store {where}: {first}")


def _no_document(client: MlflowClient, run: Run) -> str:
    what = f"The run {run.info.run_id!r} holds no performance document"
    if _has_children(client, run):
        return f"{what} of its own: it is the parent of others, name one of those."
    if run.info.status == "RUNNING":
        return f"{what} yet: it is still going, and a document is logged at the end."
    return f"{what}."


def _has_children(client: MlflowClient, run: Run) -> bool:
    query = f"tags.`{PARENT_TAG}` = '{run.info.run_id}'"
    return bool(client.search_runs([run.info.experiment_id], query, max_results=1))


def read_document(client: MlflowClient, run: Run) -> PerfDocument | None:
    """Return the document of a run of MLflow without its curves, None where it has none.

    Raises:
        RunNotFoundError: When the artifacts cannot be read.
        DocumentError: When one is not a document that this version reads.
    """
    with _artifacts(client, run) as folder:
        return None if folder is None else merge_without_curves(map(_from_file, _files_at(folder)))


@contextmanager
def _artifacts(client: MlflowClient, run: Run) -> Iterator[Path | None]:
    """Yield a folder on this machine with the run's `node-*.json`, or None."""
    local = _local_folder(run.info.artifact_uri or "")
    if local is not None:
        yield next((p for p in _places(local) if any(p.glob(_NODE_FILES))), None)
        return
    with tempfile.TemporaryDirectory(prefix="mlflow-perf-") as folder:
        try:
            yield _download(client, run.info.run_id, Path(folder))
        except DocumentError as error:
            # The folder is gone when this is read; the file is in the run.
            where = f"run {run.info.run_id}, "
            raise DocumentError(str(error).replace(f"{folder}{os.sep}", where)) from error


def _local_folder(uri: str) -> Path | None:
    parsed = urlparse(uri)
    if parsed.scheme == "file" and parsed.netloc in ("", "localhost"):
        return Path(url2pathname(parsed.path))
    # A scheme of one letter is a drive of Windows.
    return Path(uri) if uri and len(parsed.scheme) <= 1 else None


def _places(root: Path) -> Iterator[Path]:
    """Yield where the documents may lie: `perf`, else another folder (`artifact_path=…`)."""
    yield root / ARTIFACT_PATH
    waiting = [root] if root.is_dir() else []
    for _ in range(_OTHER_FOLDERS_MAX + 1):
        if waiting:
            folder = waiting.pop(0)
            yield folder
            waiting += sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())


def _download(client: MlflowClient, run_id: str, target: Path) -> Path | None:
    from mlflow.exceptions import MlflowException

    try:
        names = _document_names(client, run_id)
        with ThreadPoolExecutor(_THREADS) as pool:
            files = list(pool.map(lambda name: fetch_file(client, run_id, name, target), names))
        return files[0].parent if files else None
    except (MlflowException, OSError) as error:
        raise RunNotFoundError(explain_failure(f"The run {run_id!r}", error)) from error


def fetch_file(client: MlflowClient, run_id: str, path: str, folder: Path) -> Path:
    """Download one file of a run's artifacts and return where it lies.

    MLflow's own function asks first whether it is a folder, and draws a progress bar for each file
    on the standard error of a job that has asked for none.

    Args:
        client: Of the store.
        run_id: The run.
        path: The file's path in the run; of names that lead nowhere else.
        folder: Where to put it, at the same path.

    Raises:
        Exception: Whatever MLflow raises when it cannot be had.
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


def _document_names(client: MlflowClient, run_id: str) -> list[str]:
    """Return the paths of a run's node documents, asking for other folders only where needed."""
    names, _ = _listing(client, run_id, f"{ARTIFACT_PATH}/")
    waiting = [""]
    for _ in range(_OTHER_FOLDERS_MAX + 1):
        if waiting and not names:
            names, folders = _listing(client, run_id, waiting.pop(0))
            waiting += sorted(f"{folder}/" for folder in folders)
    return names


def _listing(client: MlflowClient, run_id: str, folder: str) -> tuple[list[str], list[str]]:
    """Return the node documents and the folders in a folder, which is empty or ends in `/`."""
    found: tuple[list[str], list[str]] = [], []
    for file in client.list_artifacts(run_id, folder.rstrip("/") or None):
        name = file.path.removeprefix(folder)
        if _is_name(name) and (file.is_dir or fnmatch(name, _NODE_FILES)):
            found[bool(file.is_dir)].append(folder + name)
    return found


def _is_name(path: str) -> bool:
    """Return whether a path of a server, which may be hostile, is that of one file or folder."""
    return path not in ("", ".", "..") and not re.search(r"[/\\:\x00]", path)
