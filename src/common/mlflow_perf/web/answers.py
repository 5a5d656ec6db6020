"""Turns views into answers: templates, addresses of our pages, and pages for errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from flask import Response, request

from mlflow_perf._version import __version__
from mlflow_perf.errors import MlflowPerfError, SettingError
from mlflow_perf.reports import html
from mlflow_perf.tracking.page_probe import PAGE_HEADER, PAGE_PATH
from mlflow_perf.web.access import Access, NotAllowedError
from mlflow_perf.web.static_prefix import read_static_prefix
from mlflow_perf.web.workspaces import bind_workspace

if TYPE_CHECKING:
    import jinja2

RUN_PATH, COMPARE_PATH = f"{PAGE_PATH}/run", f"{PAGE_PATH}/compare"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    PAGE_HEADER: __version__,
}


@lru_cache(maxsize=1)
def _load_templates() -> jinja2.Environment:
    """Return the templates of this folder before those of the report."""
    import jinja2

    ours = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    below = html.load_templates()
    assert below.loader is not None
    templates = below.overlay(loader=jinja2.ChoiceLoader([ours, below.loader]))
    templates.filters = {**templates.filters, "css_text": _escape_css}
    return templates


def _escape_css(text: str) -> str:
    """Return a text for a string in a style sheet: all but letters and digits as code points."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\{ord(c):x} " for c in text)


def _read_workspace() -> str:
    """Return the workspace that the address names; empty for the server's default."""
    return request.args.get("workspace", "").strip()


def _link_page(path: str = PAGE_PATH, **query: str | Sequence[str]) -> str:
    """Return the address of a page of ours in the same workspace."""
    kept = {**query, "workspace": _read_workspace()}
    text = urlencode({name: value for name, value in kept.items() if value}, doseq=True)
    return f"{read_static_prefix()}{path}{'?' if text else ''}{text}"


def link_run(run_id: str) -> str:
    """Return the address of a run's page."""
    return _link_page(RUN_PATH, id=run_id)


def _link_mlflow(experiment_id: Any, run_id: Any) -> str:
    # MLflow 3.18 opens on a view that hides ordinary runs.
    path = f"#/experiments/{quote(str(experiment_id), safe='')}/runs/{quote(str(run_id), safe='')}"
    query = {"workflowType": "machine_learning", "workspace": _read_workspace()}
    shown = urlencode({name: value for name, value in query.items() if value})
    return f"{read_static_prefix()}/{path}?{shown}"


def render(template: str, status: int = 200, **values: Any) -> Response:
    """Return a template's page; the template gets the values and the addresses of our pages."""
    links = {"run_address": link_run, "mlflow_address": _link_mlflow, "page_address": _link_page}
    page = _load_templates().get_template(template)
    text = page.render(prefix=read_static_prefix(), workspace=_read_workspace(), **links, **values)
    return Response(text, status, HEADERS, mimetype="text/html")


def handle_errors(view: Callable[[Access], Response]) -> Callable[[], Response]:
    """Turn an exception of a view into a page with one sentence and the right status."""

    @wraps(view)
    def answer() -> Response:
        from mlflow.exceptions import MlflowException

        if request.method == "HEAD":  # a job only checks whether this page exists
            return Response(status=200, headers=HEADERS, mimetype="text/html")
        try:
            if b"%00" in request.query_string:  # PostgreSQL takes no text with it
                raise SettingError("The address holds a zero byte.")
            workspace = _read_workspace()
            with bind_workspace(workspace):
                return view(Access(read_static_prefix(), workspace))
        except NotAllowedError as error:
            return render("perf_error.html", error.status, message=str(error))
        except MlflowPerfError as error:
            return render("perf_error.html", 400, message=str(error))
        except MlflowException as error:
            status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]  # MLflow's
            return render("perf_error.html", status, message=error.message)

    return answer
