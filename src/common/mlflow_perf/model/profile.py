"""Where in the code a job's time went: a tree of functions with the wall and CPU time of each.

The time is kept in buckets, so that any part of the run can be looked at by itself. A profile is
plain data within a node's document, of bounded size, and makes the speedscope file and the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.exactness import find_share_error
from mlflow_perf.model.samples import FINEST_SEC, MAIN_THREAD, NATIVE_THREADS, Function

if TYPE_CHECKING:
    from mlflow_perf.model.document import NodeDocument

_LONGEST_SEC = 1e12  # more is no time of a job, and its sums might be infinite
MODULE = "<module>"
"""The name of the code of a module, which runs as it is imported."""
_LAMBDA, _GENERATOR = "<lambda>", "<genexpr>"
_MOST_CALLERS = 8

Times = dict[int, tuple[float, float]]
"""Tree node → wall and CPU seconds of the node itself."""


def list_functions(node: NodeDocument, part: str = "functions") -> list[dict[str, Any]]:
    """Return the rows of a node's profile, one per function; none without a profile.

    Args:
        node: The node.
        part: `functions`, or `own` for the job's own functions.
    """
    profile = node.extra.get("profile")
    rows = profile.get(part) if isinstance(profile, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def name_function(name: str, file: str, line: Any) -> str:
    """Return a name for people: of a module its file, and of a lambda its place."""
    if name == _LAMBDA:
        return f"a lambda at line {line} of {file}"
    return file if name == MODULE else name


def read_samples(profile: Any) -> dict[str, float]:
    """Return the numbers of equal samples in a profile's data: `wall`, `cpu`, `main`; or none."""
    counts = profile.get("equal_samples") if isinstance(profile, dict) else None
    rows = counts.items() if isinstance(counts, dict) else ()
    return {str(key): number for key, n in rows if (number := read_number(n)) is not None}


def format_share(row: Mapping[str, Any], key: str) -> str:
    """Return a share in a row of the profile for people: `48 ± 4%`, or `48.3%` if it is exact.

    Args:
        row: A row of `functions`.
        key: `self` or `total`.
    """
    share, error = (read_number(row.get(f"{key}{end}")) or 0.0 for end in ("_pct", "_error_pct"))
    return f"{share:.0f} ± {error:.0f}%" if error >= 0.5 else f"{share:.1f}%"


def add_times(into: Times, more: Times, share: float = 1.0) -> None:
    """Add times, or a share of them, to those of the same tree nodes."""
    for node, (wall, cpu) in more.items():
        had = into.get(node, (0.0, 0.0))
        into[node] = had[0] + share * wall, had[1] + share * cpu


@dataclass
class Profile:
    """The tree of one node's job.

    Attributes:
        functions: The functions; those without a file are roots, such as `main thread`.
        parents: Of each tree node the index of its parent, -1 for a root.
        names: Of each tree node the index of its function.
        width_sec: Length of a bucket.
        buckets: Of each bucket: tree node → wall and CPU seconds of the node itself.
        main_threads: How many main threads it has at a time on average: the ranks of this node.
        samples: How many equal samples (`model.exactness`) the times come from: `wall`, `cpu`, and
            `main` for the main thread's wall time; empty if unknown.
    """

    functions: list[Function] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    width_sec: float = FINEST_SEC
    buckets: list[dict[int, tuple[float, float]]] = field(default_factory=list)
    main_threads: float = 1.0
    samples: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the tree as plain data: times in milliseconds."""
        return {
            "width_s": self.width_sec,
            "main_threads": round(self.main_threads, 3),
            "equal_samples": {key: round(count, 1) for key, count in self.samples.items()},
            "functions": [list(function) for function in self.functions],
            "parents": self.parents,
            "names": self.names,
            "buckets": [
                [
                    number
                    for node, (wall, cpu) in sorted(bucket.items())
                    for number in (node, round(1e3 * wall, 1), round(1e3 * cpu, 1))
                ]
                for bucket in self.buckets
            ],
        }

    @classmethod
    def from_dict(cls, data: Any) -> Profile | None:
        """Return the tree that `as_dict` wrote; None for anything else, such as a damaged one."""
        try:
            functions = [
                Function(str(name), str(file), int(line), bool(library))
                for name, file, line, library in data["functions"]
            ]
            parents, names = list(map(int, data["parents"])), list(map(int, data["names"]))
            buckets = []
            for row in data["buckets"]:
                numbers = [read_number(value) for value in row]
                triples = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
                buckets.append(
                    {int(n or 0): ((w or 0.0) / 1e3, (c or 0.0) / 1e3) for n, w, c in triples}
                )
            width = read_number(data["width_s"]) or 0.0
            mains = float(data.get("main_threads", 1))  # those before 0.2.0 do not say
        except (TypeError, ValueError, KeyError, OverflowError):
            return None
        count = len(parents)
        is_sound = (
            len(names) == count
            and 0 < width < _LONGEST_SEC
            and 0 < mains < math.inf
            and all(-1 <= parent < i for i, parent in enumerate(parents))
            and all(0 <= name < len(functions) for name in names)
            and all(0 <= node < count for bucket in buckets for node in bucket)
            and all(0 <= t < _LONGEST_SEC for b in buckets for times in b.values() for t in times)
        )
        if not is_sound:
            return None
        return cls(functions, parents, names, width, buckets, mains, read_samples(data))

    def sum_nodes(
        self, start_sec: float = 0.0, end_sec: float = math.inf
    ) -> dict[int, tuple[float, float]]:
        """Return tree node → wall and CPU seconds of itself, within a part of the run."""
        sums: dict[int, tuple[float, float]] = {}
        for i, bucket in enumerate(self.buckets):
            begin = i * self.width_sec
            inside = min(end_sec, begin + self.width_sec) - max(start_sec, begin)
            share = min(1.0, inside / self.width_sec)
            if share > 0:
                add_times(sums, bucket, share)
        return sums

    def list_path(self, node: int) -> list[int]:
        """Return the tree nodes from a node out to its root."""
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return path

    def list_own(self, start_sec: float = 0.0, end_sec: float = math.inf) -> list[dict[str, Any]]:
        """Return the job's own functions with the time in them and in the libraries they called.

        Args:
            start_sec: Begin of the part of the run.
            end_sec: Its end.

        Returns:
            `function`, `file`, `main_s` (wall time of the main thread; of several ranks, the mean
            of theirs), `wall_s` and `cpu_s` (of all threads and processes), the longest first;
            `native_s`, the part of `cpu_s` that threads used which Python does not know. If
            the number of samples is known, also `main_error_s` and `cpu_error_s`: half widths of
            the 95% intervals. `callers` has the same for each of the job's own functions that
            called it.
        """
        credited: dict[Function, list[float]] = {}
        callers: dict[Function, dict[Function, list[float]]] = {}
        sums = self.sum_nodes(start_sec, end_sec)
        part, whole = self.sum_times(sums), self.sum_times(self.sum_nodes())
        for node, (wall, cpu) in sums.items():
            path = [self.functions[self.names[one]] for one in self.list_path(node)]
            own, caller = _find_own(path)
            if own is None:
                continue
            times = [credited.setdefault(own, [0.0, 0.0, 0.0, 0.0])]
            of_own = callers.setdefault(own, {})
            if caller is not None:
                times.append(of_own.setdefault(caller, [0.0, 0.0, 0.0, 0.0]))
            for had in times:
                had[0] += wall if path[-1].name == MAIN_THREAD else 0.0
                had[1] += wall
                had[2] += cpu
                had[3] += cpu if path[0] == NATIVE_THREADS else 0.0
        rows = self._describe(credited, part, whole)
        # In the same order, so that the functions belong to the rows.
        for row, function in zip(rows, credited, strict=True):
            found = _sort_by_time(self._describe(callers[function], part, whole))
            row["callers"] = found[:_MOST_CALLERS]
        return _sort_by_time(rows)

    def _describe(
        self,
        credited: Mapping[Function, Sequence[float]],
        part: Mapping[str, float],
        whole: Mapping[str, float],
    ) -> list[dict[str, Any]]:
        """Return a row for each function.

        Args:
            credited: Main thread's wall, wall, CPU and native threads' CPU seconds of each.
            part: The sums of these in the part of the run, as `sum_times` gives them.
            whole: The same of the whole run.
        """
        rows: list[dict[str, Any]] = [
            {
                "function": name_function(function.name, function.file, function.line),
                "file": function.file,
                "main_s": round(main / self.main_threads, 3),
                "wall_s": round(wall, 3),
                "cpu_s": round(cpu, 3),
                **({"native_s": round(native, 3)} if native else {}),
            }
            for function, (main, wall, cpu, native) in credited.items()
        ]
        for row in rows if self.samples else ():
            for key, times in (("main", self.main_threads), ("cpu", 1.0)):
                seconds = part[key] / times
                samples = self.samples.get(key, 0.0) * part[key] / (whole[key] or 1.0)
                share = row[f"{key}_s"] / (seconds or 1.0)
                row[f"{key}_error_s"] = round(seconds * find_share_error(share, samples), 3)
        return rows

    def sum_times(self, nodes: Times) -> dict[str, float]:
        """Return the `wall` and `cpu` seconds of tree nodes, and the wall seconds under `main`."""
        sums = {"wall": 0.0, "cpu": 0.0, "main": 0.0}
        for node, (wall, cpu) in nodes.items():
            sums["wall"] += wall
            sums["cpu"] += cpu
            if self.functions[self.names[self.list_path(node)[-1]]].name == MAIN_THREAD:
                sums["main"] += wall
        return sums

    def to_speedscope(self, name: str) -> dict[str, Any]:
        """Return the profile in the format of speedscope: one by wall time and one by CPU time.

        Args:
            name: Title of the profile.
        """
        frames = [
            {"name": f.name, "file": f.file, "line": f.line} if f.file else {"name": f.name}
            for f in self.functions
        ]
        stacks = [
            [self.names[one] for one in reversed(self.list_path(node))]
            for node in range(len(self.parents))
        ]
        profiles = []
        for place, title in enumerate(("wall time", "CPU time")):
            # Within a bucket the order is that of the tree: equal stacks stay together.
            found = [
                (stacks[node], round(times[place], 6))
                for bucket in self.buckets
                for node, times in sorted(bucket.items(), key=lambda item: stacks[item[0]])
                if times[place] > 0
            ]
            weights = [weight for _, weight in found]
            profiles.append(
                {
                    "type": "sampled",
                    "name": f"{name}: {title}",
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": round(sum(weights), 6),
                    "samples": [stack for stack, _ in found],
                    "weights": weights,
                }
            )
        return {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "mlflow-perf",
            "name": name,
            "activeProfileIndex": 0,
            "shared": {"frames": frames},
            "profiles": profiles,
        }


def _find_own(path: Sequence[Function]) -> tuple[Function | None, Function | None]:
    """Return the job's own function that a stack is in, and the one of the job's that called it.

    Recursive calls and generated code have no caller.

    Args:
        path: The functions from the innermost to the outermost.
    """
    named = [function for function in path if function.file]
    ours = [one for one in named if not (one.is_library or one.name == _GENERATOR)]
    # A lambda or a generator expression is part of the function that has it.
    own = next((one for one in ours if one.name != _LAMBDA), None)
    if own is None:
        # Time of native threads that is nobody's has a row, too.
        return (named[0] if named else next((f for f in path if f == NATIVE_THREADS), None)), None
    outer = ours[ours.index(own) + 1 :]
    if own in outer or own.file.startswith("<"):
        return own, None
    callers = [one for one in outer if not one.file.startswith("<")]
    caller = next((one for one in callers if one.name != _LAMBDA), None)
    # The module, or a cell, may have many lambdas: each is a caller of its own.
    if callers and (caller is None or caller.name in (MODULE, caller.file)):
        caller = callers[0]
    return own, caller


def _sort_by_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of functions, the longest first."""
    return sorted(rows, key=lambda row: -max(row["main_s"], row["cpu_s"]))
