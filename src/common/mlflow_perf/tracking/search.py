"""Searches for runs, and reads their figures in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.json_io import to_json
from mlflow_perf.errors import DocumentError, RunNotFoundError, SettingError
from mlflow_perf.tracking.load import (
    RunRef,
    Visit,
    bare_id,
    explain_failure,
    fetch_run,
    is_run_id,
    list_experiments,
    make_client,
    merge_without_curves,
    read_document,
    read_documents,
)
from mlflow_perf.tracking.notices import tell
from mlflow_perf.tracking.paging import PAGE, iterate_pages
from mlflow_perf.tracking.perf_run import PARENT_TAG, STEPS_TAG, TAG, PerfRun
from mlflow_perf.tracking.pools import map_beside

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Watch = Callable[[Iterable[Any], int], Iterable[Any]]
"""Takes items and their count and yields the items: a progress bar."""

Visits = Callable[[str], Visit | None]
"""Takes the id of a run, and returns what is called with each of its documents."""

watch: ContextVar[Watch] = ContextVar("watch", default=lambda items, _count: items)
"""Wraps the runs that are read; the command line sets its progress bar here."""

_IDS_PER_QUERY = 100
_ONE_BY_ONE_MAX = 4
_DOCUMENTS_MAX = 200
_CHILDREN_MAX = 100 * PAGE
_GROUPS_MAX = 100
_THREADS = 8


def get_run(source: RunRef, visit: Visit | None = None) -> PerfRun:
    """Return one run with its document, from MLflow, a file or a folder.

    The document has no curves; `load` and `read_documents` return them. It is None if the run has
    none, as a workflow's parent and a run that is still going.

    Args:
        source: Run id, path to a document, or folder of `node-*.json`.
        visit: Is called with each of the run's documents, one per node, which has its curves.

    Raises:
        RunNotFoundError: When there is no such run or file.
        DocumentError: When a file is not a document that this version reads.
    """
    if not is_run_id(source):
        whole = merge_without_curves(read_documents(source), visit)
        return PerfRun.from_document(str(source), whole)
    run = fetch_run(make_client(), bare_id(source))
    return _read([run], documents=True, visits=lambda _: visit)[0]


def get_runs(sources: Sequence[RunRef], *, documents: bool | None = None) -> list[PerfRun]:
    """Return several runs in the order of `sources`, their documents without the curves.

    Args:
        sources: Run ids, paths and folders, mixed.
        documents: Whether to read the documents of MLflow runs. By default they are read for up to
            200 runs. For more runs, only documents of several nodes are read: a run of one node has
            its most important figures in its metrics, which are read in batches.

    Raises:
        RunNotFoundError: When one does not exist.
        DocumentError: When a file is not a document that this version reads.
    """
    ids = list(dict.fromkeys(bare_id(source) for source in sources if is_run_id(source)))
    found: dict[str, Run] = {}
    client = make_client() if ids else None
    if client is not None and len(ids) > _ONE_BY_ONE_MAX:
        experiments = _find_experiments(client)
        chunks = [ids[i : i + _IDS_PER_QUERY] for i in range(0, len(ids), _IDS_PER_QUERY)]
        queries = [f"attributes.run_id IN ({', '.join(map(quote_literal, c))})" for c in chunks]
        for query in watch.get()(queries, len(queries)):
            found |= {run.info.run_id: run for run in iterate_runs(client, experiments, query)}
    # A search does not show the runs of a deleted experiment; a request by id says why.
    runs = [found.get(i) or fetch_run(client, i) for i in ids] if client is not None else []
    by_id = dict(zip(ids, _read(runs, documents), strict=True))
    return [by_id[bare_id(source)] if is_run_id(source) else get_run(source) for source in sources]


def find_runs(
    component: str | None = None,
    *,
    filter_string: str = "",
    experiment_names: Sequence[str] = (),
    max_results: int = 1000,
    documents: bool | None = None,
    silent: list[PerfRun] | None = None,
) -> list[PerfRun]:
    """Return the runs that hold performance data, newest first.

    A run with a damaged document, or with artifacts that cannot be read here, is left out, and
    `tell` is told: the others' past is as good as before.

    Args:
        component: Only runs to which this component reported, each with its figures alone.
        filter_string: A further condition, in MLflow's search language.
        experiment_names: Only runs in these experiments; default: in all.
        max_results: Maximum number of runs.
        documents: As in `get_runs`.
        silent: Gets the component's runs, or those of all, that were killed before they had
            figures.

    Raises:
        RunNotFoundError: When an experiment does not exist or the store does not answer.
        SettingError: When the condition is not in MLflow's search language.
    """
    conditions = [filter_string] if filter_string.strip() else []
    client = make_client()
    experiments = _find_experiments(client, experiment_names)
    page_size = max(1, min(PAGE, 2 * max_results))

    def search(*more: str) -> Iterator[Run]:
        query = " and ".join([*more, *conditions])
        return iterate_runs(client, experiments, query, page_size=page_size)

    def reports(run: Run) -> bool:
        whole = PerfRun.from_mlflow(run)
        own = whole if component is None else whole.find_component(component)
        if own is not None and own.status == "KILLED" and not own.has_figures:
            (silent if silent is not None else []).append(own)
        return own is not None and own.has_figures

    if component is None:
        return _read_undamaged(filter(reports, search()), max_results, documents)
    # MLflow's search language has no "or". Of a run with several components, the first one is in
    # one tag and the others are in a JSON list in another tag.
    first = search(f"tags.`{TAG}component` = {quote_literal(component)}")
    pattern = quote_literal(f"%{to_json(component)[1:-1]}%")
    further = search(f"tags.`{TAG}components` LIKE {pattern}")
    found = merge(first, further, key=lambda run: run.info.start_time or 0, reverse=True)

    runs = _read_undamaged(filter(reports, found), max_results, documents)
    return [own for run in runs if (own := run.find_component(component)) is not None]


def find_children(
    run: PerfRun, *, documents: bool | None = None, visits: Visits | None = None
) -> list[PerfRun]:
    """Return the runs whose parent is `run`, sorted by their start.

    The runs of a group or of a pipeline among them take its place.

    Args:
        run: A run of MLflow; a run made from a file has no children.
        documents: As in `get_runs`.
        visits: Returns the `visit` of `get_run` for a child's id; is called in several threads.
    """
    if run.run_id is None or run.experiment_id is None:
        return []

    def find(parent: PerfRun) -> list[PerfRun]:
        query = f"tags.`{PARENT_TAG}` = {quote_literal(str(parent.run_id))}"
        runs = iterate_runs(make_client(), parent.step_experiments, query)
        return _read(list(islice(runs, _CHILDREN_MAX)), documents, visits)

    return open_groups(run, find)


def name_all_steps_experiments(parent_id: str, since_ms: int) -> None:
    """Tag a workflow's run with all experiments in which it has steps, for `find_children`.

    A step that reports does so itself; a run of another experiment without a report does not.

    Args:
        parent_id: The workflow's run.
        since_ms: When it started, Unix time in milliseconds.

    Raises:
        RunNotFoundError: When the store does not answer, or has no such run.
    """
    client = make_client()
    parent = PerfRun.from_mlflow(fetch_run(client, parent_id))
    known = parent.step_experiments
    others = [one for one in list_experiments(client) if one not in known]
    query = f"tags.`{PARENT_TAG}` = {quote_literal(parent_id)}"
    query += f" and attributes.start_time >= {since_ms}"
    for first in range(0, len(others), _IDS_PER_QUERY):
        some = others[first : first + _IDS_PER_QUERY]
        found = iterate_runs(client, some, query)
        for experiment_id in {run.info.experiment_id for run in islice(found, _CHILDREN_MAX)}:
            client.set_tag(parent_id, f"{STEPS_TAG}{experiment_id}", "true")


def open_groups(run: PerfRun, find: Callable[[PerfRun], Sequence[PerfRun]]) -> list[PerfRun]:
    """Return the steps of a workflow: those of each group inside it take the group's place.

    Args:
        run: The workflow's parent.
        find: Returns the runs whose parent is a run; is asked for `run` first.
    """
    steps: list[PerfRun] = []
    # Tags that anybody can write may make a circle of runs.
    opened = {run.run_id}
    waiting = list(find(run))
    while waiting:
        child = waiting.pop()
        if child.run_id in opened:
            continue
        inner: Sequence[PerfRun] = ()
        if child.is_group and len(opened) <= _GROUPS_MAX:
            opened.add(child.run_id)
            inner = find(child)
        waiting += [one.place_in(child) for one in inner]
        steps += [] if inner else [child]
    return sorted(steps, key=lambda step: (step.started or 0.0, step.label))


def quote_literal(text: str) -> str:
    """Return a text as a literal of MLflow's search language, which cannot escape quotes.

    Raises:
        SettingError: When it contains both kinds of quotes.
    """
    if "'" not in text:
        return f"'{text}'"
    if '"' not in text:
        return f'"{text}"'
    raise SettingError(
        f"The name {text!r} holds both kinds of quotes: MLflow cannot search for it."
    )


def _find_experiments(client: MlflowClient, names: Sequence[str] = ()) -> list[str]:
    """Return the ids of the named experiments; without names, of all."""
    from mlflow.exceptions import MlflowException

    if not names:
        return list(list_experiments(client))
    ids = []
    try:
        for name in names:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                list_experiments(client)  # says why, where the whole workspace is missing
                raise RunNotFoundError(f"There is no experiment {name!r}.")
            ids.append(str(experiment.experiment_id))
        return ids
    except MlflowException as error:
        raise RunNotFoundError(explain_failure("The list of experiments", error)) from error


def iterate_runs(
    client: MlflowClient, experiments: Sequence[str], query: str, *, page_size: int = PAGE
) -> Iterator[Run]:
    """Yield the runs that a query finds; the next page is requested when one is used up."""
    from mlflow.exceptions import MlflowException

    search = client.search_runs
    try:
        yield from iterate_pages(search, list(experiments), query, max_results=page_size)
    except MlflowException as error:
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise SettingError(f"MLflow cannot search for {query!r}: {error}") from error
        raise RunNotFoundError(explain_failure("The list of runs", error)) from error


def _read_undamaged(found: Iterator[Run], most: int, documents: bool | None) -> list[PerfRun]:
    """Return the first runs whose documents can be read, and tell about the others.

    Raises:
        RunNotFoundError: When the artifacts of all of them cannot be read.
    """
    whole: list[PerfRun] = []
    away: list[RunNotFoundError] = []
    while batch := list(islice(found, most - len(whole) - len(away))):
        for run, read in zip(batch, _try_to_read(batch, documents), strict=True):
            if isinstance(read, PerfRun):
                whole.append(read)
            elif isinstance(read, DocumentError):
                tell.get()(f"The run {run.info.run_id} is left out: {read}")
            else:
                away.append(read)
    if away and not whole:
        raise away[0]
    if away:
        count = "1 run is" if len(away) == 1 else f"{len(away)} runs are"
        tell.get()(f"{count} left out, whose artifacts cannot be read here: {away[0]}")
    return whole


def _read(
    runs: Sequence[Run], documents: bool | None, visits: Visits | None = None
) -> list[PerfRun]:
    """Return the runs, each with its document if `documents` of `get_runs` asks for it."""
    whole: list[PerfRun] = []
    for read in _try_to_read(runs, documents, visits):
        if not isinstance(read, PerfRun):
            raise read
        whole.append(read)
    return whole


def _try_to_read(
    runs: Sequence[Run], documents: bool | None, visits: Visits | None = None
) -> Iterable[PerfRun | DocumentError | RunNotFoundError]:
    """Return each run as in `_read`, or why its document cannot be read."""
    if not runs:
        return []
    client = make_client()

    def read(run: Run) -> PerfRun | DocumentError | RunNotFoundError:
        perf_run = PerfRun.from_mlflow(run)
        wanted = documents
        if wanted is None:
            several_nodes = perf_run.has_figures and not perf_run.nodes
            wanted = several_nodes or len(runs) <= _DOCUMENTS_MAX
        if not wanted:
            return perf_run
        try:
            visit = visits(run.info.run_id) if visits is not None else None
            return replace(perf_run, document=read_document(client, run, visit))
        except (DocumentError, RunNotFoundError) as error:
            return error

    return list(watch.get()(map_beside(read, runs, threads=_THREADS), len(runs)))
