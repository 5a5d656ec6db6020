"""Reads runs and artifacts inside the server, with the rights of the request's user.

Questions that decide on access go through MLflow's own routes, in the same process and with the
headers of the request, so that every check of MLflow or a plugin applies: authentication,
permissions, workspaces. The runs of readable experiments then come from the tracking store itself,
which is several times as fast. A run's parent and its steps count only within its own experiment,
because MLflow's permissions are those of experiments.
"""

from __future__ import annotations

import contextvars
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any
from urllib.parse import urlencode

from flask import current_app, request
from werkzeug.wrappers import Response

from mlflow_perf.core.json_io import from_json
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.bounds import Bounds
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking import fleet_sums
from mlflow_perf.tracking.fleet_sql import query_sums
from mlflow_perf.tracking.perf_run import PARENT_TAG, PerfRun
from mlflow_perf.tracking.search import open_groups
from mlflow_perf.web.choice import Choice
from mlflow_perf.web.run_search import search, search_choice
from mlflow_perf.web.running_job import build_live_nodes, query_samples
from mlflow_perf.web.table import (
    OUR_KEYS,
    Found,
    drop_foreign_parents,
    load_models,
    query_newest,
    query_parents,
    query_runs,
    query_steps,
)
from mlflow_perf.web.workspaces import has_workspaces

_EXPERIMENTS_PER_PAGE = 1000
_MOST_CHILDREN = 1000
_ARTIFACT_PATH = "perf"
_OTHER_FOLDERS_MAX, _MOST_COMPONENTS = 20, 100
_MB = 1 << 20
_MOST_DOCUMENT_MB = 8  # a document takes 30 times its size while it is read; 1,000 reports: 0.4 MB
_MOST_REQUEST_MB = 512  # 1,000 nodes of 1,000 reports each take 400 MB
_WHOLE_ID = "An address takes a run's whole id, 32 characters: choose the run in the list."
_WORKSPACES = "ajax-api/3.0/mlflow/workspaces"
_WORKSPACE_HEADER = "HTTP_X_MLFLOW_WORKSPACE"
SIGNED_IN = "mlflow_perf.signed_in"  # in a page's inner requests: names and passwords found right


class NotAllowedError(Exception):
    """MLflow does not let this user read something, or it does not exist.

    Attributes:
        status: The HTTP status of MLflow's answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Access:
    """Reads runs and artifacts with the rights of the user of the current request.

    Args:
        prefix: The server's static prefix.
        workspace: The workspace to read; empty for the server's default.

    Attributes:
        unread: Why documents are left out, one sentence each.
    """

    def __init__(self, prefix: str, workspace: str = "") -> None:
        self._prefix = prefix
        self._workspace = workspace
        self._left_bytes = _MOST_REQUEST_MB * _MB
        self._answered: dict[str, bool] = {}
        self._signed_in: set[tuple[str, str]] = set()
        self.unread: list[str] = []

    def workspaces(self) -> list[str]:
        """Return the names of the workspaces that the user may see; empty where there are none."""
        if not has_workspaces():
            return []
        answer = self._ask(f"/{_WORKSPACES}", {})
        if answer.status_code != 200:
            return []
        return sorted(str(one["name"]) for one in json.loads(answer.get_data())["workspaces"])

    def experiments(self) -> dict[str, str]:
        """Return the experiments that the user may read: id → name.

        Raises:
            NotAllowedError: When the user may read none at all.
        """
        found: dict[str, str] = {}
        token = ""
        while True:
            query = {"max_results": str(_EXPERIMENTS_PER_PAGE), "page_token": token}
            page = self._api("experiments/search", {k: v for k, v in query.items() if v})
            for one in page.get("experiments") or []:
                found[str(one["experiment_id"])] = str(one.get("name", ""))
            token = page.get("next_page_token") or ""
            if not token:
                return found

    def runs(
        self, experiments: Sequence[str], choice: Choice, keys: Sequence[str] = OUR_KEYS
    ) -> Found:
        """Return a page of the runs that hold performance data.

        Args:
            experiments: Ids that `experiments` returned.
            choice: Which runs, in which order, how many.
            keys: The metrics to read besides those of the chosen columns.

        Raises:
            mlflow.exceptions.MlflowException: When the condition cannot be searched for.
            SettingError: When MLflow's search language cannot express a value, or there is no
                such page.
        """
        if parent_id := choice.equal.get("workflow"):
            homes = self.run(parent_id).step_experiments
            experiments = [one for one in experiments if one in homes]
        if not experiments:
            return Found([])
        listed = query_runs(_open_store(), experiments, choice, keys)
        if listed is not None:
            # Trends and advice need no steps, which cost a large store 0.2 s to find.
            return self._add_family(listed) if keys is OUR_KEYS else listed
        return self._add_family(search_choice(_open_store(), experiments, choice))

    def newest_runs(
        self,
        experiments: Sequence[str],
        choice: Choice,
        components: Sequence[str],
        keys: Sequence[str] | None,
    ) -> dict[str, list[PerfRun]]:
        """Return the newest runs of each component: `limit` of the choice for each.

        Args:
            experiments: Ids that `experiments` returned.
            choice: Which runs.
            components: The components.
            keys: The metrics to read; None for all, and all parameters and tags.
        """
        if not components:
            return {}
        found = None
        if "workflow" not in choice.equal:  # `runs` checks whose workflow it is
            found = query_newest(_open_store(), experiments, choice, components, keys)
        if found is None:
            equal = [{**choice.equal, "component": name} for name in components]
            chosen = [replace(choice, equal=one) for one in equal]
            pages = [self.runs(experiments, one, keys or ()) for one in chosen]
            found = {name: page.runs for name, page in zip(components, pages, strict=True)}
        return found

    def sums(
        self, experiments: Sequence[str], by: str, edges_ms: Sequence[int]
    ) -> list[fleet_sums.Sums] | None:
        """Return the hours and costs of runs by group; None if this store has no tables.

        Args:
            experiments: Ids that `experiments` returned.
            by: As in `fleet_store.sum_runs`.
            edges_ms: Moments in their order that divide the groups, Unix time in milliseconds;
                runs that started before the first do not count.
        """
        store = _open_store()
        if load_models(store) is None:
            return None
        choice = fleet_sums.Choice(by, list(experiments), edges_ms[0], edges_ms=tuple(edges_ms))
        return query_sums(store, choice)

    def run(self, run_id: str) -> PerfRun:
        """Return one run, without its document.

        Raises:
            NotAllowedError: When there is none, or the user may not read it.
        """
        self._api("runs/get", {"run_id": run_id})
        found = [PerfRun.from_mlflow(_open_store().get_run(run_id))]
        return drop_foreign_parents(_open_store(), found, self._may_read)[0]

    def live_nodes(self, run: PerfRun) -> list[NodeDocument]:
        """Return what the metrics of a running job, which the user may read, show of it so far."""
        return build_live_nodes(run, query_samples(_open_store(), str(run.run_id)), time.time())

    def children(self, run: PerfRun) -> list[PerfRun]:
        """Return the steps of a run that the user may read, as `find_children` does."""
        return open_groups(run, self._find_children)

    def _find_children(self, run: PerfRun) -> Sequence[PerfRun]:
        query = f"tags.`{PARENT_TAG}` = '{run.run_id}'"
        order = ["attributes.start_time ASC"]
        home = str(run.experiment_id)
        homes = [one for one in run.step_experiments if one == home or self._may_read(one)]
        return search(_open_store(), homes, query, _MOST_CHILDREN, order_by=order).runs

    def _may_read(self, experiment_id: str) -> bool:
        """Return whether the user may read an experiment; each is asked for once."""
        if experiment_id not in self._answered:
            self._answered[experiment_id] = False
            with suppress(NotAllowedError):
                self._api("experiments/get", {"experiment_id": experiment_id})
                self._answered[experiment_id] = True
        return self._answered[experiment_id]

    def _add_family(self, found: Found) -> Found:
        """Return runs with their steps, and without parents that do not count them."""
        store = _open_store()
        runs = drop_foreign_parents(store, found.runs, self._may_read)
        return replace(found, runs=runs, steps=query_steps(store, runs, self._may_read))

    def children_of_each(self, runs: Sequence[PerfRun]) -> list[list[PerfRun]]:
        """Return the children of each run; only runs that have some are searched for them."""
        parents = query_parents(_open_store(), runs)
        return [
            self.children(one) if parents is None or one.run_id in parents else [] for one in runs
        ]

    def with_document(self, run: PerfRun) -> PerfRun:
        """Return the run with the documents of its nodes but without their curves."""
        documents: dict[str, PerfDocument] = {}
        first = ""
        for place, node in enumerate(self.nodes(run)):
            node.reports = {}
            index = node.node.get("index")
            first = first or node.component or ""
            find_component = documents.setdefault(node.component or first, PerfDocument())
            find_component.nodes[index if type(index) is int else place] = node
        if not documents:
            return run
        whole = documents.pop(first)
        whole.components = documents
        return replace(run, document=whole)

    def nodes(self, run: PerfRun) -> Iterator[NodeDocument]:
        """Yield the documents of a run's nodes; unreadable and excessive parts are left out.

        The iterator must be used up within the current request.
        """
        bounds = Bounds()
        yield from bounds.bound(self._read_nodes(run))
        self.unread += [text for text in bounds.list_left_out() if text not in self.unread]

    def _read_nodes(self, run: PerfRun) -> Iterator[NodeDocument]:
        for path in self._find_documents(str(run.run_id)):
            content = self._artifact(str(run.run_id), path)
            if content is None:
                self.unread.append(f"{path} cannot be read.")
                continue
            if len(content) > _MOST_DOCUMENT_MB * _MB:
                self.unread.append(
                    f"{path} is not shown: it has more than {_MOST_DOCUMENT_MB} MB. "
                    "`mlflow-perf report` on a machine of yours reads larger ones."
                )
                continue
            self._left_bytes -= len(content)
            if self._left_bytes < 0:
                self.unread.append(
                    f"This page reads at most {_MOST_REQUEST_MB} MB of documents: {path} and those "
                    "after it are left out."
                )
                return
            try:
                document = PerfDocument.from_json(content)
            except DocumentError as error:
                self.unread.append(f"{path} cannot be shown: {error}")
                continue
            yield from (document.nodes[index] for index in sorted(document.nodes))

    def workflow(self, run: PerfRun) -> dict[str, Any] | None:
        """Return the workflow's data that its runner wrote, or None."""
        path = f"{_ARTIFACT_PATH}/workflow.json"
        content = self._artifact(str(run.run_id), path) or b""
        if len(content) > _MOST_DOCUMENT_MB * _MB:
            self.unread.append(f"{path} is not shown: it has more than {_MOST_DOCUMENT_MB} MB.")
            return None
        try:
            data = from_json(content) if content else None
        except (ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) else None

    def _find_documents(self, run_id: str) -> list[str]:
        """Return the paths of a run's documents: in `perf`, else in another folder.

        Those of further components follow, which are in folders of their own.
        """
        folders = [_ARTIFACT_PATH, ""]
        for _ in range(_OTHER_FOLDERS_MAX + 2):
            if not folders:
                break
            folder = folders.pop(0)
            paths, below = self._list_folder(run_id, folder)
            if paths:
                for component in below[:_MOST_COMPONENTS]:
                    paths += self._list_folder(run_id, component)[0]
                return paths
            if folder != _ARTIFACT_PATH:
                folders += below
        return []

    def _list_folder(self, run_id: str, folder: str) -> tuple[list[str], list[str]]:
        """Return the paths of the documents in a folder of artifacts, and of the folders in it."""
        query = {"run_id": run_id, "path": folder} if folder else {"run_id": run_id}
        try:
            files = self._api("artifacts/list", query).get("files") or []
        except NotAllowedError:
            return [], []
        names = {str(file.get("path", "")): bool(file.get("is_dir")) for file in files}
        paths = [n for n, is_dir in names.items()
                 if not is_dir and fnmatch(n.rpartition("/")[2], "node-*.json")]  # fmt: skip
        return paths, sorted(name for name, is_dir in names.items() if is_dir)

    def _artifact(self, run_id: str, path: str) -> bytes | None:
        """Return a file of a run, cut one byte beyond the largest document; None if unreadable."""
        query = {"run_id": run_id, "path": path}
        answer = self._ask("/get-artifact", query, most_bytes=_MOST_DOCUMENT_MB * _MB)
        return answer.get_data() if answer.status_code == 200 else None

    def _api(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        answer = self._ask(f"/ajax-api/2.0/mlflow/{path}", query)
        if answer.status_code != 200:
            reason = f"MLflow answered with the status {answer.status_code}."
            if answer.status_code in (401, 403):
                reason = "MLflow does not let you read this, or there is no such run."
            with suppress(ValueError, KeyError, TypeError):
                reason = str(json.loads(answer.get_data())["message"])
            if answer.status_code == 404 and "run_id" in query:
                reason = f"The run {query['run_id'][:60]!r} was not found. {_WHOLE_ID}"
            raise NotAllowedError(reason, answer.status_code)
        data = json.loads(answer.get_data())
        return data if isinstance(data, dict) else {}

    def _ask(
        self, path: str, query: Mapping[str, str], *, most_bytes: int | None = None
    ) -> Response:
        """Return the answer of one of MLflow's own routes to the user of the current request.

        Args:
            path: The route, below the static prefix.
            query: Its parameters.
            most_bytes: Stop reading the answer one byte beyond this.
        """
        kept = {k: v for k, v in request.environ.items() if not k.startswith("werkzeug.")}
        environ = {
            **kept,
            "REQUEST_METHOD": "GET",
            "PATH_INFO": f"{self._prefix}{path}",
            "QUERY_STRING": urlencode(query),
            **dict.fromkeys(("REQUEST_URI", "RAW_URI", "CONTENT_TYPE"), ""),
            "CONTENT_LENGTH": "0",
            "wsgi.input": io.BytesIO(),
            SIGNED_IN: self._signed_in,
        }
        if self._workspace:
            environ[_WORKSPACE_HEADER] = self._workspace

        def read_answer() -> Response:
            if self._workspace:
                from mlflow.utils.workspace_context import clear_server_request_workspace

                # MLflow finds the workspace of an inner request in that request's own header.
                clear_server_request_workspace()
            answer = Response.from_app(current_app.wsgi_app, environ)
            parts, size = [], 0
            with closing(answer):
                for part in answer.iter_encoded():
                    parts.append(part)
                    size += len(part)
                    if most_bytes is not None and size > most_bytes:
                        break
            content = b"".join(parts)[: None if most_bytes is None else most_bytes + 1]
            return Response(content, answer.status_code)

        # In its own context, so that the end of the inner request does not end this one.
        return contextvars.copy_context().run(read_answer)


def _open_store() -> Any:
    from mlflow.server.handlers import _get_tracking_store

    return _get_tracking_store()
