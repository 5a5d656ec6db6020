"""Measures of the package's architecture: `python tools/house.py` prints them.

The graph has a room for each folder and each loose file at the package's root, and an arrow from a
room to each room that it imports: at the top of a file, inside a function, or by a string such as
`import_module("mlflow_perf.reports.html")`. The package's `__init__` only hands out public names,
so it has no room. A room's floor is one above the highest room that it imports.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "common" / "mlflow_perf"
NAME = "mlflow_perf"

Graph = dict[str, set[str]]
"""Name → the names that it imports."""

_OF_0_1_0 = Path(__file__).with_name("modules_of_0_1_0.txt")
"""The modules for what version 0.1.0 did; all others came with later features."""


def module_name(path: Path) -> str:
    """Return a file's dotted name below the package; the package's own `__init__` is ''."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def all_modules() -> dict[str, Path]:
    """Return each module of the package by its dotted name below the package."""
    return {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported_modules(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """Return the modules of ours that a file imports, by statement or by string.

    Args:
        path: The file.
        modules: The modules of the package, from `all_modules`.
    """
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == NAME:
            base = str(node.module)[len(NAME) + 1 :]
            names = [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
            found |= {name if name in modules else base for name in names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found |= {name[len(NAME) + 1 :] for name in names if name.startswith(f"{NAME}.")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= _module_in_string(node.value, modules)
    return found - {"", module_name(path)}


def _module_in_string(text: str, modules: Mapping[str, Path]) -> set[str]:
    match = re.fullmatch(rf"{NAME}\.([\w.]+)", text)
    # A tag such as "mlflow_perf.node" has one part; a module that is imported by string has more.
    return {match[1]} if match and "." in match[1] and match[1] in modules else set()


def module_graph() -> Graph:
    """Return the graph of the package's modules."""
    modules = all_modules()
    return {name: imported_modules(path, modules) for name, path in modules.items() if name}


def room_graph() -> Graph:
    """Return the graph of rooms: the package's folders and the loose files at its root."""
    rooms: Graph = defaultdict(set)
    for module, imports in module_graph().items():
        room = module.split(".")[0]
        rooms[room] |= {name.split(".")[0] for name in imports} - {room}
    return dict(rooms)


def circles(graph: Graph) -> list[set[str]]:
    """Return the groups of nodes that import each other in a circle."""
    reach = {name: _reachable(graph, name) for name in graph}
    groups = []
    for name in graph:
        group = {other for other in reach[name] if name in reach.get(other, set())}
        if group and group not in groups:
            groups.append(group)
    return groups


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph.get(name, ())
    return seen


def floors(graph: Graph) -> dict[str, int]:
    """Return the floor of each room, from 1; the graph must have no circle."""
    found: dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in found:
            found[name] = 1 + max((floor(below) for below in graph.get(name, ())), default=0)
        return found[name]

    for name in graph:
        floor(name)
    return found


@dataclass(frozen=True)
class Functions:
    """What the package's functions look like.

    Attributes:
        total: How many functions and methods there are.
        used_once: How many private ones their file names only once besides the definition.
        callbacks: How many of these are handed over, to a thread or a table, and not called.
        long: How many have more than 60 lines, docstring included.
        fragments: File → its private functions that are used once.
    """

    total: int
    used_once: int
    callbacks: int
    long: int
    fragments: Mapping[str, int]


def count_functions(paths: Iterable[Path]) -> Functions:
    """Count the functions of the package's files."""
    total = callbacks = long = 0
    fragments: Counter[str] = Counter()
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        uses = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, (ast.Name, ast.Attribute))
        )
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        called = {getattr(func, "id", getattr(func, "attr", "")) for func in calls}
        for node in ast.walk(tree):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            total += 1
            long += (node.end_lineno or node.lineno) - node.lineno + 1 > 60
            private = node.name.startswith("_") and not node.name.startswith("__")
            is_once = private and uses[node.name] == 1
            fragments[str(path.relative_to(PACKAGE))] += is_once
            callbacks += is_once and node.name not in called
    return Functions(total, fragments.total(), callbacks, long, fragments)


def mirrored_modules(modules: Mapping[str, Path]) -> tuple[int, int]:
    """Return how many modules have a test in the same place below `tests`, and their number."""
    paths = [p for p in modules.values() if p.stem not in ("__init__", "__main__", "_version")]
    tests = [
        ROOT / "tests" / p.relative_to(PACKAGE).parent / f"test_{p.stem.lstrip('_')}.py"
        for p in paths
    ]
    return sum(test.exists() for test in tests), len(paths)


def repeated_stems(modules: Mapping[str, Path]) -> list[str]:
    """Return the file names that stand for two or more modules."""
    stems = Counter(path.stem for path in modules.values())
    return sorted(s for s, n in stems.items() if n > 1 and s not in ("__init__", "base"))


@dataclass
class Lines:
    """How many lines there are.

    Attributes:
        total: All lines.
        code: Those that are neither blank nor a comment nor part of a docstring.
        first: Those of the modules for what version 0.1.0 did, with what was added to them since.
        folders: Folder → all its lines.
    """

    total: int = 0
    code: int = 0
    first: int = 0
    folders: Counter[str] = field(default_factory=Counter)


def count_lines(paths: Iterable[Path]) -> Lines:
    """Count the lines of the package's files."""
    found = Lines()
    first = set(_OF_0_1_0.read_text(encoding="utf-8").split())
    for path in paths:
        text = path.read_text(encoding="utf-8")
        total = len(text.splitlines())
        name = path.relative_to(PACKAGE).as_posix()
        found.total += total
        found.first += total if name in first else 0
        found.folders[name.split("/")[0] if "/" in name else "(root)"] += total
        strings = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        found.code += sum(
            1
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in strings
        )
    return found


def main() -> None:
    """Print every measure with its bound."""
    modules = all_modules()
    rooms = room_graph()
    tied = circles(rooms) + circles(module_graph())
    functions = count_functions(modules.values())
    once = functions.used_once
    mirrored, testable = mirrored_modules(modules)
    lines = count_lines(modules.values())
    readme = len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    stems = repeated_stems(modules)
    top = ", ".join(f"{name} {n}" for name, n in Counter(functions.fragments).most_common(5))
    rows = [
        ("loose files at the package's root", str(len(list(PACKAGE.glob("*.py")))), "at most 8"),
        ("rooms at the top of the package", str(len(rooms)), "at most 26"),
        ("floors", "–" if tied else str(max(floors(rooms).values())), "at most 11"),
        ("arrows between rooms", str(sum(map(len, rooms.values()))), ""),
        ("circles of rooms or modules", str(len(tied)), "none"),
        ("source lines", f"{lines.total:,}", f"{lines.code:,} of code"),
        ("  of the modules of 0.1.0", f"{lines.first:,}", "at most 28,000 for what 0.1.0 did"),
        ("  of modules since then", f"{lines.total - lines.first:,}", ""),
        (
            "private functions used once",
            f"{once / functions.total:.0%}",
            f"at most 15%; {once} of {functions.total}, {functions.callbacks} as callbacks",
        ),
        ("functions over 60 lines", str(functions.long), "none"),
        ("modules with a mirrored test", f"{mirrored / testable:.0%}", "at least 80%"),
        ("file names used twice or more", str(len(stems)), ", ".join(stems[:8])),
        ("README lines", str(readme), "at most 130"),
        ("most functions used once", top, ""),
        ("lines", ", ".join(f"{name} {n:,}" for name, n in lines.folders.most_common()), ""),
    ]
    for name, value, bound in rows:
        print(f"{name:<34} {value:>7}   {f'({bound})' if bound else ''}".rstrip())
    for group in tied:
        print("circle: " + ", ".join(sorted(group)))


if __name__ == "__main__":
    main()
