"""Reads runs and artifacts inside the server, with the rights of whoever asks.

What decides on access is asked through MLflow's own routes, in the same process and with the
headers of the request at hand, so that every check MLflow or a plugin makes there holds here too:
authentication, permissions, workspaces. The runs of experiments that may be read then come from the
tracking store itself, which is several times as fast.
"""

from __future__ import annotations

import contextvars
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from flask import current_app, request
from werkzeug.wrappers import Response

from mlflow_perf.core.json_io import from_json
from mlflow_perf.errors import DocumentError, SettingError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PARENT_TAG, PerfRun
from mlflow_perf.web.listing import Choice, Found, build_search
from mlflow_perf.web.table import query_runs, query_steps

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["Access", "NotAllowedError"]

_EXPERIMENTS_PER_PAGE = 1000
_MOST_CHILDREN = 1000
_ARTIFACT_PATH = "perf"
_OTHER_FOLDERS_MAX = 20


class NotAllowedError(Exception):
    """MLflow does not let this user read that, or there is no such thing.

    Attributes:
        status: The HTTP status that MLflow answered with.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Access:
    """What the user of the request at hand may read.

    Args:
        prefix: The server's static prefix.

    Attributes:
        unread: Why documents that were asked for are left out, one sentence each.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.unread: list[str] = []

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

    def runs(self, experiments: Sequence[str], choice: Choice) -> Found:
        """Return a page of the runs that hold performance data.

        Args:
            experiments: Ids that `experiments` returned.
            choice: Which runs, in which order, how many.

        Raises:
            mlflow.exceptions.MlflowException: When the condition cannot be searched for.
            SettingError: When MLflow's search language cannot say a value, or there is no such
                page.
        """
        if not experiments:
            return Found([])
        if not choice.query:
            rows = query_runs(_store(), experiments, choice)
            if rows is not None:
                return _with_steps(_page_of(rows, choice))
        from mlflow.exceptions import MlflowException

        condition, order = build_search(choice)
        try:
            found = _search(experiments, condition, choice.limit, order_by=order, page=choice.page)
        except MlflowException as error:
            # A token that is none fails anywhere in MLflow, which takes it for its own error.
            if not choice.page or error.error_code != "INTERNAL_ERROR":
                raise
            raise SettingError("There is no such page of runs: open the list anew.") from error
        return _with_steps(found)

    def run(self, run_id: str) -> PerfRun:
        """Return one run, without its document.

        Raises:
            NotAllowedError: When there is none, or the user may not read it.
        """
        self._api("runs/get", {"run_id": run_id})
        run: Run = _store().get_run(run_id)
        return PerfRun.from_mlflow(run)

    def children(self, run: PerfRun) -> list[PerfRun]:
        """Return the runs whose parent is a run that the user may read."""
        query = f"tags.`{PARENT_TAG}` = '{run.run_id}'"
        return _search([str(run.experiment_id)], query, _MOST_CHILDREN).runs

    def with_document(self, run: PerfRun) -> PerfRun:
        """Return the run with the documents of its nodes, where it has any."""
        nodes = {_index(node, i): node for i, node in enumerate(self.nodes(run))}
        return replace(run, document=PerfDocument(nodes)) if nodes else run

    def nodes(self, run: PerfRun) -> Iterator[NodeDocument]:
        """Return the documents of a run's nodes one by one; those that cannot be read are left out.

        All of them are asked for within the request at hand.
        """
        for path in self._node_files(str(run.run_id)):
            content = self._artifact(str(run.run_id), path)
            if content is None:
                self.unread.append(f"{path} cannot be read.")
                continue
            try:
                document = PerfDocument.from_json(content)
            except DocumentError as error:
                self.unread.append(f"{path} cannot be shown: {error}")
                continue
            yield from (document.nodes[index] for index in sorted(document.nodes))

    def workflow(self, run: PerfRun) -> dict[str, Any] | None:
        """Return what the workflow's runner wrote of it, or None."""
        content = self._artifact(str(run.run_id), f"{_ARTIFACT_PATH}/workflow.json")
        try:
            data = from_json(content) if content else None
        except (ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) else None

    def _node_files(self, run_id: str) -> list[str]:
        """Return the paths of a run's documents: in `perf`, else in another folder."""
        paths, _ = self._listing(run_id, _ARTIFACT_PATH)
        waiting = [""]
        for _ in range(_OTHER_FOLDERS_MAX + 1):
            if waiting and not paths:
                paths, folders = self._listing(run_id, waiting.pop(0))
                waiting += sorted(folders)
        return paths

    def _listing(self, run_id: str, folder: str) -> tuple[list[str], list[str]]:
        """Return the node documents and the folders in a folder; "" is the root."""
        query = {"run_id": run_id, "path": folder} if folder else {"run_id": run_id}
        try:
            files = self._api("artifacts/list", query).get("files") or []
        except NotAllowedError:
            return [], []
        within = f"{folder}/" if folder else ""
        paths = [str(file.get("path", "")) for file in files if not file.get("is_dir")]
        folders = [str(file.get("path", "")) for file in files if file.get("is_dir")]
        return [p for p in paths if fnmatch(p.removeprefix(within), "node-*.json")], folders

    def _artifact(self, run_id: str, path: str) -> bytes | None:
        answer = self._ask("/get-artifact", {"run_id": run_id, "path": path})
        return answer.get_data() if answer.status_code == 200 else None

    def _api(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        answer = self._ask(f"/ajax-api/2.0/mlflow/{path}", query)
        if answer.status_code != 200:
            raise NotAllowedError(_reason(answer), answer.status_code)
        data = json.loads(answer.get_data())
        return data if isinstance(data, dict) else {}

    def _ask(self, path: str, query: Mapping[str, str]) -> Response:
        """Return the answer of MLflow's own route to the user of the request at hand."""
        kept = {k: v for k, v in request.environ.items() if not k.startswith("werkzeug.")}
        environ = {
            **kept,
            "REQUEST_METHOD": "GET",
            "PATH_INFO": f"{self._prefix}{path}",
            "QUERY_STRING": urlencode(query),
            "REQUEST_URI": "",
            "RAW_URI": "",
            "CONTENT_LENGTH": "0",
            "CONTENT_TYPE": "",
            "wsgi.input": io.BytesIO(),
        }
        # In a context of its own: the end of that request must not undo what belongs to this one.
        context = contextvars.copy_context()
        return context.run(Response.from_app, current_app.wsgi_app, environ, buffered=True)


def _index(node: NodeDocument, place: int) -> int:
    index = node.node.get("index")
    return index if type(index) is int else place


def _reason(answer: Response) -> str:
    try:
        message = json.loads(answer.get_data())["message"]
    except (ValueError, KeyError, TypeError):
        if answer.status_code in (401, 403):
            return "MLflow does not let you read this, or there is no such run."
        return f"MLflow answered with the status {answer.status_code}."
    return str(message)


def _search(
    experiments: Sequence[str],
    query: str,
    limit: int,
    *,
    order_by: Sequence[str] = (),
    page: str = "",
) -> Found:
    from mlflow.entities import ViewType

    active = ViewType.ACTIVE_ONLY
    runs = _store().search_runs(
        list(experiments), query, active, limit, list(order_by), page or None
    )
    return Found([PerfRun.from_mlflow(run) for run in runs], runs.token or None)


def _page_of(rows: list[PerfRun], choice: Choice) -> Found:
    """Return a page from rows of which the last, where there is one too many, is the next one's."""
    more = len(rows) > choice.limit
    return Found(rows[: choice.limit], str(choice.offset + choice.limit) if more else None)


def _with_steps(found: Found) -> Found:
    return replace(found, steps=query_steps(_store(), found.runs))


def _store() -> Any:
    from mlflow.server.handlers import _get_tracking_store

    return _get_tracking_store()
