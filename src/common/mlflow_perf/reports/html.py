"""Reports as HTML: one self-contained page each.

The page is first built as plain data, then rendered by templates with autoescape on; the page's
script gets its data as JSON. By its content security policy the page contacts no host and runs only
its own two scripts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf._version import __version__
from mlflow_perf.core.format import format_chance, show_spaces
from mlflow_perf.core.replaced import note_all_imported
from mlflow_perf.model.document import NodeDocument, PerfDocument

if TYPE_CHECKING:
    import jinja2

    from mlflow_perf.reports.comparison_page import ComparisonPage
    from mlflow_perf.tracking.perf_run import PerfRun

_TEMPLATES = Path(__file__).parent / "templates"


def render(
    document: PerfDocument | Iterable[NodeDocument],
    *,
    title: str | None = None,
    workflow: Mapping[str, Any] | None = None,
    pictures: Mapping[str, str] | None = None,
    run: PerfRun | None = None,
) -> str:
    """Return the report of a run, or of a whole workflow, as one HTML page.

    Args:
        document: The run's nodes; an iterator of nodes is read once, one node at a time.
        title: Heading; default: the workflow's or the component's name.
        workflow: The workflow as plain data, from `mlflow_perf.analysis.workflow`.
        pictures: SVG elements to show, by their headings, such as those of a workflow's spans.
        run: What MLflow knows of the run: its name and parameters.
    """
    context = build_context(document, title=title, workflow=workflow, pictures=pictures, run=run)
    return _make_writable(load_templates().get_template("report.html").render(context))


def load_modules() -> None:
    """Load what `render` needs and loads at its first call: numpy, jinja2, our templates."""
    from mlflow_perf.reports import pictures, run_page, workflow_page  # noqa: F401

    load_templates().get_template("report.html")
    note_all_imported()


def build_context(
    document: PerfDocument | Iterable[NodeDocument],
    *,
    title: str | None = None,
    workflow: Mapping[str, Any] | None = None,
    link: Callable[[str], str] | None = None,
    pictures: Mapping[str, str] | None = None,
    run: PerfRun | None = None,
) -> dict[str, Any]:
    """Return the variables of the template `report.html`.

    Args:
        document: The run's nodes.
        title: Heading.
        workflow: The workflow as plain data.
        link: Returns the address of a step's run; default: no links, because they lead nowhere in
            MLflow's artifact pane.
        pictures: SVG elements by their headings.
        run: What MLflow knows of the run.
    """
    # numpy and jinja2 are loaded when a page is made, not when a job starts.
    from mlflow_perf.reports.pictures import build_pictures
    from mlflow_perf.reports.run_page import build_run_page
    from mlflow_perf.reports.workflow_page import build_workflow_page

    flow = None if workflow is None else build_workflow_page(workflow)
    report = build_run_page(document, title=title or (flow.name if flow else None), run=run)
    if flow and report.curves is None:
        # The figures are those of the steps, which have notes and sizes of their own.
        report.notes, report.asked = [], None
    report.pictures, left_out = build_pictures(pictures or {})
    report.notes += left_out
    return {"report": report, "flow": flow, "link": link or (lambda _run_id: "")}


def render_comparison(
    data: Mapping[str, Any],
    *,
    nodes: Mapping[str, Sequence[Iterable[NodeDocument]]] | None = None,
) -> str:
    """Return a comparison of runs as one HTML page.

    Args:
        data: From `mlflow_perf.analysis.compare.Comparison.as_dict`.
        nodes: Step → per run its nodes with their curves, to be drawn over each other.
    """
    page = build_comparison(data, nodes=nodes)
    title = f"Comparison of {len(page.runs)} runs"
    return _make_writable(
        load_templates().get_template("comparison.html").render(page=page, title=title)
    )


def build_comparison(
    data: Mapping[str, Any],
    *,
    nodes: Mapping[str, Sequence[Iterable[NodeDocument]]] | None = None,
) -> ComparisonPage:
    """Return the variable `page` of the template `comparison.html`; arguments as above."""
    from mlflow_perf.reports.compared_curves import build_compared_curves
    from mlflow_perf.reports.comparison_page import build_comparison_page

    labels = [str(run) for run in data.get("runs") or []]
    baseline = int(data.get("baseline") or 0)
    curves = build_compared_curves(labels, nodes, baseline=baseline) if nodes else []
    return build_comparison_page(data, curves)


def _make_writable(page: str) -> str:
    """Return a page without lone surrogates, which cannot be encoded."""
    return page.encode("utf-8", "replace").decode()


@lru_cache(maxsize=1)
def load_templates() -> jinja2.Environment:
    """Return the environment of the templates, with autoescape on; a missing name is an error."""
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    env.filters["sentence"] = _mark_code
    env.filters["chance"] = format_chance
    env.filters["spaced"] = show_spaces
    env.globals.update(no_address=lambda _index: "")
    env.globals.update(asset=_read_asset, script_hash=_hash_script, version=__version__)
    return env


def _mark_code(text: str) -> Any:
    """Return a sentence as HTML, with the text between backticks as code."""
    from markupsafe import Markup, escape

    parts = [
        f"<code>{escape(part)}</code>" if i % 2 else str(escape(part))
        for i, part in enumerate(text.split("`"))
    ]
    return Markup("".join(parts))  # noqa: S704 - every part is escaped


@lru_cache(maxsize=16)
def _read_asset(name: str) -> Any:
    """Return a script or a style sheet of the package, to be put into the page unescaped."""
    from markupsafe import Markup

    text = (_TEMPLATES / name).read_text("utf-8")
    # No asset contains "</script" or "</style": a test reads them all.
    return Markup(text)  # noqa: S704 - the package's own file, never a user's text


@lru_cache(maxsize=16)
def _hash_script(name: str) -> str:
    """Return the name of a script in the content security policy."""
    digest = hashlib.sha256(str(_read_asset(name)).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
