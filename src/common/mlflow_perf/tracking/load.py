"""Loads performance documents from a run, a file or a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from mlflow_perf.core.foreign_files import read_foreign
from mlflow_perf.core.format import clean_folder_name
from mlflow_perf.core.temporary import temporary_folder
from mlflow_perf.core.uris import find_local_database, first_line, is_refused, redact_password
from mlflow_perf.errors import DocumentError, RunNotFoundError
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.tracking.notices import explain_deleted, tell
from mlflow_perf.tracking.older_runs import make_older_document
from mlflow_perf.tracking.opened_store import opening_store
from mlflow_perf.tracking.paging import iterate_pages
from mlflow_perf.tracking.perf_run import PARENT_TAG, TAG, PerfRun
from mlflow_perf.tracking.pools import map_beside
from mlflow_perf.tracking.run_files import fetch_file, list_files

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RunRef = str | os.PathLike[str]
"""A run id (also `runs:/<id>`), a path to a document, or a folder of `node-*.json`."""

Visit = Callable[[PerfDocument], None]
"""Is called with each document that is read, before its curves are dropped."""

_ARTIFACT_PATH = "perf"
_NAME_THE_STORE = "Set MLFLOW_TRACKING_URI to the store or server that holds the runs."
_THREADS = 8
_MOST_MB = 2048  # a thousand nodes with 1,000 reports each, in one file, have 400 MB
_RUN_ID = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_-]{0,255}")
# Tables show the first characters of an id.
_ID_PREFIX = re.compile(r"[0-9a-f]{8,31}")
_NODE_FILES = "node-*.json"
_OTHER_FOLDERS_MAX = 20
_OTHER_FILES_MAX = 100
_BY_SERVER = "When an mlflow-artifacts URI was supplied"


def is_run_id(source: RunRef) -> bool:
    """Return whether a source names an MLflow run and not an existing file."""
    if not isinstance(source, str) or source[0:1] == "/" or not _RUN_ID.fullmatch(bare_id(source)):
        return False
    return source.startswith("runs:/") or not Path(source).exists()


def bare_id(source: RunRef) -> str:
    """Return the run id in `runs:/<id>` or `<id>`."""
    return str(source).removeprefix("runs:/").strip("/")


def load(source: RunRef) -> PerfDocument:
    """Return the performance document of a run, a file or a folder of `node-*.json`.

    Args:
        source: Run id, path to a document, or folder (also one that contains `perf/`).

    Raises:
        RunNotFoundError: When there is no such run or file, or it holds no performance data.
        DocumentError: When a file cannot be read, or is no document that this version reads.
    """
    return reduce(PerfDocument.merge, read_documents(source))


def read_documents(source: RunRef) -> Iterator[PerfDocument]:
    """Yield the documents that `load` would merge, one by one; at least one.

    A job on a thousand nodes has half a gigabyte of curves, one file per node. Code that needs only
    one node at a time saves memory with this function.

    Args:
        source: Run id, path to a document, or folder (also one that contains `perf/`).

    Raises:
        RunNotFoundError: When there is no such run or file, or it holds no performance data.
        DocumentError: When a file cannot be read, or is no document that this version reads.
    """
    if source == "":  # as a path, it would be the current folder: an unset variable in a script
        raise RunNotFoundError("The name of a run is empty: give a run id, a file or a folder.")
    if not is_run_id(source):
        yield from _read_files(_find_files(Path(source)))
        return
    client = make_client()
    run = fetch_run(client, bare_id(source))
    documents = _read_run(client, run)
    if (first := next(documents, None)) is not None:
        yield from chain([first], documents)
        return
    missing = f"The run {run.info.run_id!r} holds no performance document"
    query = f"tags.`{PARENT_TAG}` = '{run.info.run_id}'"
    known = PerfRun.from_mlflow(run)
    if client.search_runs(known.step_experiments, query, max_results=1):
        missing += " of its own: it is the parent of others, name one of those"
    elif f"{TAG}imported_from" in run.data.tags:
        missing += ": it was imported, and `mlflow-perf show` prints its figures"
    elif run.info.status == "RUNNING":
        raise RunNotFoundError(known.explain_missing_end())
    raise RunNotFoundError(f"{missing}.")


def save_nodes(document: PerfDocument, folder: Path) -> list[Path]:
    """Write one `node-<n>.json` per node into a folder and return their paths.

    Raises:
        OSError: When the folder cannot be created or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [
        PerfDocument({index: node}, document.extra).save(folder / f"node-{index}.json")
        for index, node in sorted(document.nodes.items())
    ]
    for name, other in sorted(document.components.items()):
        files += save_nodes(other, folder / clean_folder_name(name))
    return files


def _read_files(paths: list[Path]) -> Iterator[PerfDocument]:
    """Yield the documents of files; those in another folder than the first are of components."""
    for path in paths:
        try:
            document = PerfDocument.from_json(read_foreign(path, most_mb=_MOST_MB))
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from error
        except OSError as error:
            raise DocumentError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
        if path.parent != paths[0].parent and document.nodes:
            names = (node.component for node in document.nodes.values())
            name = next(filter(None, names), path.parent.name)
            document = PerfDocument(components={name: document})
        yield document


def _find_files(path: Path) -> list[Path]:
    """Return the file itself, or the node files of a folder, sorted by node.

    Those of further components follow, which are in folders of their own.
    """
    if not path.is_dir():
        if not path.exists():
            raise RunNotFoundError(f"There is no run, file or folder {str(path)!r}.")
        return [path]
    for folder in (path, path / _ARTIFACT_PATH):
        if files := _sort_by_node(folder.glob(_NODE_FILES)):
            return files + _sort_by_node(folder.glob(f"*/{_NODE_FILES}"))
    raise RunNotFoundError(f"The folder {str(path)!r} holds no {_NODE_FILES}.")


def _sort_by_node(files: Iterable[Path]) -> list[Path]:
    return sorted(files, key=lambda file: (file.parent, len(file.name), file.name))


def merge_without_curves(
    documents: Iterable[PerfDocument], visit: Visit | None = None
) -> PerfDocument:
    """Return the merged documents without their curves: with summaries, operations and facts."""
    whole = PerfDocument()
    for document in documents:
        if visit is not None:
            visit(document)
        for node in document.all_nodes():
            node.reports = {}
            if isinstance(profile := node.extra.get("profile"), dict):
                profile.pop("flame", None)
        whole = whole.merge(document)
    return whole


def make_client() -> MlflowClient:
    """Return a client of the tracking store that MLflow's own settings name.

    Raises:
        RunNotFoundError: When there is no store, it does not listen, or MLflow cannot use it.
    """
    import mlflow

    uri = mlflow.get_tracking_uri()
    unusable = f"The tracking store {redact_password(uri)} cannot be used:"
    file = find_local_database(uri)
    # MLflow would create a store for every typing error.
    if file is not None and not (file.is_file() and file.stat().st_size):
        raise RunNotFoundError(f"{unusable} there is no {file.absolute()}. {_NAME_THE_STORE}")
    if is_refused(uri):
        raise RunNotFoundError(f"{unusable} nothing listens there. {_NAME_THE_STORE}")
    try:
        with opening_store(uri):
            return mlflow.MlflowClient()
    # MLflow's errors, a database's, or those of a missing driver: they share no base class.
    except Exception as error:
        raise RunNotFoundError(f"{unusable} {first_line(error)}") from error


def fetch_run(client: MlflowClient, run_id: str) -> Run:
    """Return a run of MLflow.

    Args:
        client: A client of the store.
        run_id: The run's id, or its first characters if no other run shares them.

    Raises:
        RunNotFoundError: When it does not exist or the store does not answer.
    """
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        similar: list[Run] = []
        if _ID_PREFIX.fullmatch(run_id):
            query = f"attributes.run_id LIKE '{run_id}%'"
            # Not every store can search by prefix.
            with suppress(MlflowException, RunNotFoundError):
                similar = [*client.search_runs([*list_experiments(client)], query, max_results=2)]
        if len(similar) == 1:
            return similar[0]
        if similar:
            why = f"More than one run begins with {run_id!r}: give more of its id."
            raise RunNotFoundError(why) from None
        raise RunNotFoundError(explain_failure(f"The run {run_id!r}", error)) from error
    if run.info.lifecycle_stage == "deleted":
        tell.get()(explain_deleted(run_id))
    return run


def list_experiments(client: MlflowClient) -> dict[str, str]:
    """Return the id and the name of each experiment that may be read.

    Raises:
        RunNotFoundError: When the store does not answer.
    """
    from mlflow.exceptions import MlflowException

    try:
        found = iterate_pages(client.search_experiments)
        return {str(experiment.experiment_id): experiment.name for experiment in found}
    except MlflowException as error:
        raise RunNotFoundError(explain_failure("The list of experiments", error)) from error


def explain_failure(what: str, error: Exception) -> str:
    """Return why something, or the whole workspace that it is in, cannot be read from the store."""
    import mlflow

    where = redact_password(mlflow.get_tracking_uri())
    if str(error).startswith(_BY_SERVER):
        return (
            f"{what} cannot be read from the tracking store {where}: its server alone reads it. Set"
            " MLFLOW_TRACKING_URI to the server's address."
        )
    first = (str(error).splitlines() or [type(error).__name__])[0]
    if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST" and "Workspace" not in first:
        return f"{what} does not exist in the tracking store {where}, nor as a file."
    return redact_password(f"{what} cannot be read from the tracking store {where}: {first}")


def read_document(
    client: MlflowClient, run: Run, visit: Visit | None = None
) -> PerfDocument | None:
    """Return the document of a run of MLflow without its curves, None if it has none.

    Raises:
        RunNotFoundError: When the artifacts cannot be read.
        DocumentError: When one is not a document that this version reads.
    """
    documents = _read_run(client, run)
    first = next(documents, None)
    return None if first is None else merge_without_curves(chain([first], documents), visit)


def _read_run(client: MlflowClient, run: Run) -> Iterator[PerfDocument]:
    """Yield the documents of a run of MLflow, one per node; none if it has none."""
    with _local_artifacts(client, run) as folder:
        if folder is not None:
            yield from _read_files(_find_files(folder))
        elif (older := _read_older(client, run)) is not None:
            yield older


def _read_older(client: MlflowClient, run: Run) -> PerfDocument | None:
    """Return the document of a run of lightgbm-benchmark's classes, made from what they logged.

    The curves, where there are any, are in a JSON file of any name at the root of the artifacts.
    """
    from mlflow.exceptions import MlflowException

    if not PerfRun.from_mlflow(run).is_older:
        return None
    saved = PerfDocument()
    try:
        with temporary_folder() as folder:
            for file in list_files(client, run.info.run_id, None)[:_OTHER_FILES_MAX]:
                if re.fullmatch(r"[\w.-]+\.json", file.path) and not file.is_dir:
                    local = fetch_file(client, run.info.run_id, file.path, folder)
                    with suppress(DocumentError):  # any other JSON of the job
                        saved = saved.merge(PerfDocument.from_json(local.read_bytes()))
        return make_older_document(client, run, saved)
    except (MlflowException, OSError) as error:
        raise RunNotFoundError(explain_failure(f"The run {run.info.run_id!r}", error)) from error


@contextmanager
def _local_artifacts(client: MlflowClient, run: Run) -> Iterator[Path | None]:
    """Yield a folder on this machine that holds the run's `node-*.json`, or None."""
    uri = run.info.artifact_uri or ""
    parsed = urlparse(uri)
    if parsed.scheme == "file" and parsed.netloc in ("", "localhost"):
        from urllib.request import url2pathname

        uri = url2pathname(parsed.path)
    elif not uri or len(parsed.scheme) > 1:  # a scheme of one letter is a drive of Windows
        with temporary_folder() as folder:
            try:
                yield _download_documents(client, run.info.run_id, folder)
            except DocumentError as error:
                # The temporary folder is gone when the message is read; name the run instead.
                where = f"run {run.info.run_id}, "
                raise DocumentError(str(error).replace(f"{folder}{os.sep}", where)) from error
        return
    # `artifact_path=…` may have put the documents into another folder.
    place, waiting = Path(uri) / _ARTIFACT_PATH, [Path(uri)]
    for _ in range(_OTHER_FOLDERS_MAX + 1):
        if any(place.glob(_NODE_FILES)) or not waiting:
            break
        place = waiting.pop(0)
        if place.is_dir():
            waiting += sorted(p for p in place.iterdir() if p.is_dir() and not p.is_symlink())
    yield place if any(place.glob(_NODE_FILES)) else None


def _download_documents(client: MlflowClient, run_id: str, target: Path) -> Path | None:
    """Download a run's node documents and return their folder; None if the run has none."""
    from mlflow.exceptions import MlflowException

    try:
        names = _list_documents(client, run_id)
        fetch = partial(fetch_file, client, run_id, folder=target)
        files = list(map_beside(fetch, names, threads=_THREADS))
    except (MlflowException, OSError) as error:
        raise RunNotFoundError(explain_failure(f"The folder {run_id}/artifacts", error)) from error
    return files[0].parent if files else None  # the first component's come first


def _list_documents(client: MlflowClient, run_id: str) -> list[str]:
    """Return the paths of a run's node documents; lists other folders only if `perf` has none."""
    folder, waiting = f"{_ARTIFACT_PATH}/", [""]
    for others in range(_OTHER_FOLDERS_MAX + 2):
        names, folders = _list_folder(client, run_id, folder)
        waiting += sorted(folders) if others else []
        if names:
            return [*names, *chain(*(_list_folder(client, run_id, place)[0] for place in folders))]
        if not waiting:
            return []
        folder = waiting.pop(0)
    return []


def _list_folder(client: MlflowClient, run_id: str, folder: str) -> tuple[list[str], list[str]]:
    """Return the paths of the node documents in a folder, and of the folders in it."""
    names, folders = [], []
    for file in list_files(client, run_id, folder.rstrip("/") or None):
        name = file.path.removeprefix(folder)
        # A hostile server could name a file outside the folder.
        if name in ("", ".", "..") or re.search(r"[/\\:\x00]", name):
            continue
        if file.is_dir:
            folders.append(f"{folder}{name}/")
        elif fnmatch(name, _NODE_FILES):
            names.append(folder + name)
    return names, folders
