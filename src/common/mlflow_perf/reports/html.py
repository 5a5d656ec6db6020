"""Reports as HTML: one self-contained page each. Imports the document and `sinks.report`.

The data is built first (`sinks.report`), then rendered by templates with autoescape on; what the
page's script needs travels as JSON. The page states a content security policy by which it can ask
no host for anything and run no script but its own two.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf._version import __version__
from mlflow_perf.model.document import NodeDocument, PerfDocument

if TYPE_CHECKING:
    import jinja2

__all__ = ["build_context", "environment", "notebook_html", "render", "render_comparison"]

_TEMPLATES = Path(__file__).parent / "templates"


def render(
    document: PerfDocument | Iterable[NodeDocument],
    *,
    title: str | None = None,
    workflow: Mapping[str, Any] | None = None,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """Return the report of a run, or of a whole workflow, as one HTML page.

    Args:
        document: The run's nodes; an iterator of nodes is read once, one node at a time.
        title: Heading; default: the workflow's or the component's name.
        workflow: The workflow's steps, as `mlflow_perf.analysis.workflow` gives them.
        pictures: SVG elements to show, by their headings, such as those of a workflow's spans.
    """
    context = build_context(document, title=title, workflow=workflow, pictures=pictures)
    return _writable(environment().get_template("report.html").render(context))


def build_context(
    document: PerfDocument | Iterable[NodeDocument],
    *,
    title: str | None = None,
    workflow: Mapping[str, Any] | None = None,
    link: Callable[[str], str] | None = None,
    pictures: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what the template `report.html` shows; arguments as those of `render`.

    Args:
        document: The run's nodes.
        title: Heading.
        workflow: The workflow's steps.
        link: Gives the address of a step's run; default: there are no links, because in MLflow's
            artifact pane they lead nowhere.
        pictures: SVG elements by their headings.
    """
    # numpy and jinja2 are loaded when a page is made, not when a job starts.
    from mlflow_perf.reports.pictures import build_pictures
    from mlflow_perf.reports.run_page import build_run_page
    from mlflow_perf.reports.workflow_page import build_workflow_page

    flow = None if workflow is None else build_workflow_page(workflow)
    report = build_run_page(document, title=title or (flow.name if flow else None))
    if flow and not report.metrics:
        report.notes = []
    report.pictures, left_out = build_pictures(pictures or {})
    report.notes += left_out
    return {"report": report, "flow": flow, "link": link or _no_link}


def _no_link(_run_id: str) -> str:
    return ""


def notebook_html(document: PerfDocument, *, height_px: int = 620) -> str:
    """Return the report for a notebook's cell: in a frame of its own, which keeps its style in.

    Args:
        document: The run's nodes.
        height_px: Height of the frame.
    """
    from markupsafe import escape

    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(render(document))}" '
        f'style="width:100%;height:{height_px}px;border:0" title="Performance report"></iframe>'
    )


def render_comparison(data: Mapping[str, Any], *, title: str | None = None) -> str:
    """Return a comparison of runs as one HTML page.

    Args:
        data: `runs` (labels), `rows` (`component`, `node`, `metric`, `unit`, `values`,
            `change_pct`, `verdict`) and, where there are any, `notes` (sentences).
        title: Heading.
    """
    from mlflow_perf.reports.comparison_page import build_comparison_page

    page = build_comparison_page(data)
    heading = title or f"Comparison of {len(page.runs)} runs"
    return _writable(environment().get_template("comparison.html").render(page=page, title=heading))


def _writable(page: str) -> str:
    """Return a page that can be written: without half a surrogate pair, which is no character."""
    return page.encode("utf-8", "replace").decode()


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Return the templates' environment: autoescape is on, and a missing name is an error."""
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    env.globals.update(asset=_asset, script_hash=_script_hash, version=__version__)
    return env


@lru_cache(maxsize=16)
def _asset(name: str) -> Any:
    """Return a script or a style sheet of ours, to stand in the page as it is."""
    from markupsafe import Markup

    text = (_TEMPLATES / name).read_text("utf-8")
    # No asset holds "</script" or "</style": a test reads them all.
    return Markup(text)  # noqa: S704 - the package's own file, never a user's text


@lru_cache(maxsize=16)
def _script_hash(name: str) -> str:
    """Return how the content security policy names a script of ours."""
    digest = hashlib.sha256(str(_asset(name)).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
