"""The text for a run's overview page in MLflow. Imports the document and Markdown's escaping."""

from __future__ import annotations

from mlflow_perf.analysis.markdown import escape
from mlflow_perf.document import NodeDocument

__all__ = ["overview_note"]

# (metric, what to say of it): the headline, as far as its figures are there.
_HEADLINE = (
    ("duration_sec", "{:.1f} s"),
    ("cpu_avg_utilization_pct", "CPUs {:.0f}% busy on average"),
    ("max_t_mem_percent", "memory {:.0f}% full at most"),
    ("node_unused_cpu_hours", "{:.3g} CPU-hours unused"),
    ("total_disk_io_read_mb", "{:.0f} MB read"),
    ("total_disk_io_write_mb", "{:.0f} MB written"),
)


def overview_note(document: NodeDocument, *, experiment_id: str | None = None) -> str:
    """Return the headline figures, the verdict and the way to the report, as Markdown.

    Args:
        document: What the node reported.
        experiment_id: The run's experiment, for a link; without it the place is named.
    """
    summary = document.summary
    figures = [text.format(summary[key]) for key, text in _HEADLINE if key in summary]
    status = escape(str(document.status or ""))
    lines = [f"**{escape(document.component or 'run')}** {status}: " + " · ".join(figures)]
    advice = document.extra.get("advice")
    if advice:
        lines.append(f"> {escape(str(advice))}")
    lines.append(_way_to_report(document.run_id, experiment_id))
    return "\n\n".join(lines)


def _way_to_report(run_id: str | None, experiment_id: str | None) -> str:
    if not run_id or not experiment_id:
        return "The whole report is `perf_report.html` among the run's artifacts."
    base = f"#/experiments/{experiment_id}/runs/{run_id}/artifacts"
    return f"[Whole report]({base}/perf_report.html)"
