"""The ladder: a module may import only modules that stand below it (design, section 1)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import mlflow_perf

PACKAGE = Path(mlflow_perf.__file__).parent

# From the lowest step to the highest. Names on one step do not import each other.
LADDER: list[set[str]] = [
    {
        "_version",
        "errors",
        "addresses",
        "clock",
        "storage",
        "errand",
        "signals",
        "causes",
        "daemons",
    },
    {"records", "settings", "launchers", "perf_page"},
    {"column_table", "metric_table", "node"},
    {"sketch", "spool"},
    {"readers", "series", "operations", "transfers"},
    {"summary", "sources"},
    {"perf"},
    {"integrations", "document"},
    {"runs", "delivery", "plotter"},
    {"analysis"},
    {"sinks", "journal"},
    {"recovery", "run_sources", "run_target", "ranks", "dispatch"},
    {"recording"},
    {"session", "command"},
    {"testing", "plugin", "spans", "pipelines", "web", "selftest"},
    {"cli"},
    {"_docs"},
    {"__main__", "__init__"},
]
STEP = {name: step for step, names in enumerate(LADDER) for name in names}
MODULES = sorted(PACKAGE.rglob("*.py"))


def _top(path: Path) -> str:
    """Return the name on the ladder to which a file of the package belongs."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def _imported(path: Path) -> set[str]:
    """Return the names on the ladder that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "mlflow_perf":
            found |= {alias.name for alias in node.names if alias.name in STEP}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlflow_perf."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found |= {n.split(".")[1] for n in names if n.startswith("mlflow_perf.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_import_points_upward(path: Path) -> None:
    """A module imports only from its own package or from a lower step of the ladder."""
    top = _top(path)
    assert top in STEP, f"{top} has no place on the ladder: give it one above"
    upward = {name for name in _imported(path) if name != top and STEP[name] >= STEP[top]}
    assert not upward, f"{path.relative_to(PACKAGE)} imports {sorted(upward)}, which stand above"


def test_every_file_is_short() -> None:
    """No file of the package is over 350 lines: one that is longer holds two things."""
    long = {
        str(p.relative_to(PACKAGE)): n
        for p in MODULES
        if (n := len(p.read_text(encoding="utf-8").splitlines())) > 350
    }
    assert not long


def test_the_docs_show_this_ladder() -> None:
    """The architecture page names the modules of each step, from the lowest to the highest."""
    page = (PACKAGE.parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ")][2:]
    shown = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    assert set().union(*shown) == set(STEP)
    lowest = [min(STEP[name] for name in names) for names in shown]
    assert lowest == sorted(lowest)
