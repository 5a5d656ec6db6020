"""The ladder: a module imports only modules of its own folder or of a lower step."""

from __future__ import annotations

import re

import pytest
from tools import house

# From the lowest step to the highest. Folders and files on one step do not import each other.
LADDER: list[set[str]] = [
    {"_version", "errors", "records"},
    {"core", "node"},
    {"model"},
    {"readers", "recorders", "testing"},
    {"sampling", "integrations", "tracking"},
    {"analysis", "selftest"},
    {"reports"},
    {"publish", "web"},
    {"session", "pipelines", "spans", "histories"},
    {"cli", "plugin"},
    {"__main__"},
]
STEP = {name: step for step, names in enumerate(LADDER) for name in names}
MODULES = house.all_modules()


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_no_import_points_upward(module: str) -> None:
    """A module imports only from its own folder or from a lower step, by string too."""
    room = module.split(".", maxsplit=1)[0]
    assert room in STEP, f"{room} has no place on the ladder: give it one above"
    imported = {name.split(".")[0] for name in house.imported_modules(MODULES[module], MODULES)}
    upward = {name for name in imported - {room} if STEP[name] >= STEP[room]}
    assert not upward, f"{module} imports {sorted(upward)}, which stand above it"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """There is no circle of imports anywhere, inside a folder either."""
    assert house.circles(house.module_graph()) == []


def test_an_import_by_string_counts() -> None:
    """The graph has an arrow for a module whose name is only a string in the code."""
    graph = house.module_graph()
    assert "integrations.proxystore" in graph["integrations.startup._mlflow_perf_startup_hook"]


def test_the_house_has_few_rooms_and_floors() -> None:
    """A reader keeps the graph of folders in mind: few rooms, few floors, few loose files."""
    rooms = house.room_graph()
    assert len(rooms) <= 26
    assert max(house.floors(rooms).values()) <= 11
    assert len(list(house.PACKAGE.glob("*.py"))) <= 8


def test_functions_are_short_and_few_are_fragments() -> None:
    """No function has more than 60 lines, and at most 15% are private and used once."""
    functions = house.count_functions(MODULES.values())
    assert functions.long == 0
    assert functions.used_once <= 0.15 * functions.total


def test_every_file_is_short() -> None:
    """No file of the package has more than 400 lines."""
    long = {
        name: lines
        for name, path in MODULES.items()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long


def test_the_docs_show_this_ladder() -> None:
    """The architecture page names the folders of each step, from the lowest to the highest."""
    page = (house.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ")][2:]
    shown = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    assert set().union(*shown) == set(STEP)
    lowest = [min(STEP[name] for name in names) for names in shown]
    assert lowest == sorted(lowest)
