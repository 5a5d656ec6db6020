"""Finding runs and reading their figures in batches. Imports the document and the errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.load import (
    RunRef,
    bare_id,
    experiment_ids,
    explain_failure,
    fetch_run,
    is_run_id,
    merge_without_curves,
    new_client,
    read_document,
    read_documents,
)
from mlflow_perf.tracking.paging import PAGE, pages
from mlflow_perf.tracking.perf_run import PARENT_TAG, TAG, PerfRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["find_children", "find_runs", "get_run", "get_runs", "quote_literal"]

Watch = Callable[[Iterable[Any], int], Iterable[Any]]
"""What sees each of so many things go by: a progress bar."""

watch: ContextVar[Watch] = ContextVar("watch", default=lambda items, _count: items)
"""What watches the runs being read; the command line sets its progress bar here."""

_IDS_PER_QUERY = 100
_ONE_BY_ONE_MAX = 4
_DOCUMENTS_MAX = 50
_THREADS = 8


def get_run(source: RunRef) -> PerfRun:
    """Return one run with its document: from MLflow, or made from a file or a folder.

    The document comes without the curves, which `load` and `read_documents` give. It is None where
    the run has none (a workflow's parent, a run that is still going).

    Raises:
        RunNotFoundError: When there is no such run or file.
        DocumentError: When a file is not a document that this version reads.
    """
    return get_runs([source], documents=True)[0]


def get_runs(sources: Sequence[RunRef], *, documents: bool | None = None) -> list[PerfRun]:
    """Return several runs, in the order of `sources`; their documents without the curves.

    Args:
        sources: Run ids, paths and folders, mixed.
        documents: Whether to read the documents of MLflow runs. By default those of up to 50 runs
            are read; of more, only those of several nodes, because a run of one node has all its
            figures in its metrics, which come in batches.

    Raises:
        RunNotFoundError: When one does not exist.
        DocumentError: When a file is not a document that this version reads.
    """
    ids = list(dict.fromkeys(bare_id(s) for s in sources if is_run_id(s)))
    found = _read(_by_id(new_client(), ids), documents) if ids else []
    by_id = dict(zip(ids, found, strict=True))
    return [
        by_id[bare_id(s)]
        if is_run_id(s)
        else PerfRun.from_document(str(s), merge_without_curves(read_documents(s)))
        for s in sources
    ]


def find_runs(
    component: str | None = None,
    *,
    filter_string: str = "",
    experiment_names: Sequence[str] = (),
    max_results: int = 1000,
    documents: bool | None = None,
) -> list[PerfRun]:
    """Return the runs that hold performance data, newest first.

    Args:
        component: Only runs of this component.
        filter_string: A further condition, in MLflow's search language.
        experiment_names: Only in these experiments; default: in all.
        max_results: At most as many.
        documents: As in `get_runs`.

    Raises:
        RunNotFoundError: When an experiment does not exist or the store does not answer.
        SettingError: When the condition is not in MLflow's search language.
    """
    conditions = [filter_string] if filter_string.strip() else []
    if component is not None:
        conditions.insert(0, f"tags.`{TAG}component` = {quote_literal(component)}")
    client = new_client()
    experiments = _experiment_ids(client, experiment_names)
    found = _pages(client, experiments, " and ".join(conditions), min(PAGE, 2 * max_results))
    usable = (run for run in found if PerfRun.from_mlflow(run).has_figures)
    return _read(list(islice(usable, max_results)), documents)


def find_children(run: PerfRun, *, documents: bool | None = None) -> list[PerfRun]:
    """Return the runs whose parent is `run`, by their start.

    Args:
        run: A run of MLflow; a file has no children.
        documents: As in `get_runs`.
    """
    if run.run_id is None or run.experiment_id is None:
        return []
    query = f"tags.`{PARENT_TAG}` = {quote_literal(run.run_id)}"
    found = _search(new_client(), [run.experiment_id], query, 100 * PAGE)
    return sorted(_read(found, documents), key=lambda r: (r.started or 0.0, r.label))


def quote_literal(text: str) -> str:
    """Return a text as a literal of MLflow's search language, which has no escape for quotes.

    Raises:
        SettingError: When it holds both kinds of quotes.
    """
    if "'" not in text:
        return f"'{text}'"
    if '"' not in text:
        return f'"{text}"'
    raise SettingError(
        f"The name {text!r} holds both kinds of quotes: MLflow cannot search for it."
    )


def _by_id(client: MlflowClient, ids: Sequence[str]) -> list[Run]:
    if len(ids) <= _ONE_BY_ONE_MAX:
        return [fetch_run(client, run_id) for run_id in ids]
    experiments = _experiment_ids(client, ())
    chunks = [ids[i : i + _IDS_PER_QUERY] for i in range(0, len(ids), _IDS_PER_QUERY)]
    queries = ["attributes.run_id IN ({})".format(", ".join(map(quote_literal, c))) for c in chunks]
    watched = watch.get()(queries, len(queries))
    found = {r.info.run_id: r for q in watched for r in _search(client, experiments, q, PAGE)}
    # What a search does not show (a deleted experiment) is asked for by its id, which says why.
    return [found.get(run_id) or fetch_run(client, run_id) for run_id in ids]


def _experiment_ids(client: MlflowClient, names: Sequence[str]) -> list[str]:
    from mlflow.exceptions import MlflowException

    try:
        if names:
            return [_experiment_id(client, name) for name in names]
        return experiment_ids(client)
    except MlflowException as error:
        raise RunNotFoundError(explain_failure("The list of experiments", error)) from error


def _experiment_id(client: MlflowClient, name: str) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        raise RunNotFoundError(f"There is no experiment {name!r}.")
    return str(experiment.experiment_id)


def _search(
    client: MlflowClient, experiments: Sequence[str], query: str, max_results: int
) -> list[Run]:
    return list(islice(_pages(client, experiments, query, min(PAGE, max_results)), max_results))


def _pages(
    client: MlflowClient, experiments: Sequence[str], query: str, size: int
) -> Iterator[Run]:
    """Yield the runs that a query finds, asking for a page when the one before is used up."""
    from mlflow.exceptions import MlflowException

    try:
        yield from pages(client.search_runs, list(experiments), query, max_results=max(1, size))
    except MlflowException as error:
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise SettingError(f"MLflow cannot search for {query!r}: {error}") from error
        raise RunNotFoundError(explain_failure("The list of runs", error)) from error


def _read(runs: Sequence[Run], documents: bool | None) -> list[PerfRun]:
    """Return the runs, with the documents that are wanted."""
    client = new_client()

    def with_document(run: Run) -> PerfRun:
        perf_run = PerfRun.from_mlflow(run)
        if not _wants_document(perf_run, len(runs), documents):
            return perf_run
        return replace(perf_run, document=read_document(client, run))

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(watch.get()(pool.map(with_document, runs), len(runs)))


def _wants_document(run: PerfRun, count: int, documents: bool | None) -> bool:
    if documents is None:
        return count <= _DOCUMENTS_MAX or (run.has_figures and not run.nodes)
    return documents
