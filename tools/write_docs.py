"""The generated parts of README and docs: `python tools/write_docs.py [ROOT]` writes them anew."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from mlflow_perf.cli import main
from mlflow_perf.core.settings import SETTINGS
from mlflow_perf.model.metrics import METRICS, RUN_METRICS, find_metric, make_gpu_metrics
from mlflow_perf.tracking.batches import select_run_metrics

PAGES = ("README.md", "docs/metrics.md", "docs/settings.md")
"""The pages with generated tables."""

__all__ = ["commands_page", "metrics_table", "settings_table", "with_tables", "write"]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or " "


def metrics_table() -> str:
    """Return the table of metrics as Markdown, from `model.metrics`."""
    rows = [
        (f"`{m.key}`", m.unit, m.source, m.formula, m.meaning, "yes" if m.by_default else "all")
        for m in (*METRICS, *make_gpu_metrics("<i>"))
    ]
    of_one_node = select_run_metrics({"run_node_count": 1.0, **{m.key: 1.0 for m in RUN_METRICS}})
    rows += [
        (f"`{m.key}`", m.unit, "all nodes", m.formula, m.meaning,
         "yes" if m.key in of_one_node else "of several nodes")
        for m in RUN_METRICS
    ]  # fmt: skip
    return _table(("key", "unit", "source", "formula", "meaning", "logged"), rows)


# What a newcomer looks at first, in this order.
_HEADLINES = (
    "duration_sec",
    "job_cpu_avg_cores",
    "job_max_mem_mb",
    "cpu_limit_cores",
    "cpu_avg_utilization_pct",
    "node_cpu_hours",
    "node_unused_cpu_hours",
    "io_stall_pct",
    "total_disk_io_read_mb",
    "total_net_io_ext_recv_mb",
    "gpu_avg_utilization_pct",
    "perf_overhead_pct",
)


def headline_table() -> str:
    """Return the table of the headline metrics as Markdown."""
    rows = [metric for key in _HEADLINES if (metric := find_metric(key)) is not None]
    return _table(("key", "unit", "meaning"), [(f"`{m.key}`", m.unit, m.meaning) for m in rows])


def settings_table() -> str:
    """Return the table of settings as Markdown, from `core.settings`."""
    rows = [
        (f"`{s.variable}`", "" if s.default in (None, "", ()) else f"`{s.default}`", s.meaning)
        for s in SETTINGS.values()
    ]
    return _table(("variable", "default", "meaning"), rows)


def with_tables(text: str) -> str:
    """Return a Markdown text with its marked tables replaced by those of the code."""
    tables = {
        "headline-metrics": headline_table(),
        "metrics": metrics_table(),
        "settings": settings_table(),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        if found:
            text = f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}"
    return text


def commands_page() -> str:
    """Return the page of all commands: what each prints with `--help`."""
    parts = [
        "# Commands",
        "Exit codes: 0 done, 1 a gate or a pipeline failed, 2 bad usage, input or output.",
    ]
    for path, command in _commands(main, ("mlflow-perf",)):
        context = click.Context(
            command, info_name=" ".join(path), terminal_width=88, help_option_names=["-h", "--help"]
        )
        parts.append(f"## `{' '.join(path)}`\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts) + "\n"


def _commands(
    group: click.Group, path: tuple[str, ...]
) -> Iterable[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        elif command is not None:
            yield (*path, name), command


def write(root: Path) -> None:
    """Write the generated parts of README and of the docs."""
    for page in (root / name for name in PAGES):
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    (root / "docs" / "commands.md").write_text(commands_page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
