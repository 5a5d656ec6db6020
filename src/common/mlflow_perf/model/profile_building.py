"""Builds the profile of a node's job, in bounded size, from the samples of its processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mlflow_perf.model.exactness import count_equal_samples, find_share_error, pool_samples
from mlflow_perf.model.profile import Profile, add_times
from mlflow_perf.model.samples import MAIN_THREAD, NATIVE_THREADS, Function, RawStacks

_MOST_BUCKETS = 64
_MOST_OWN = 30
_MOST_NODES = 1000
_MOST_CELLS = 5000
_MOST_ROWS = 50
_LEAST_SHARE = 0.0004
_OTHER = "(other)"
_MOST_WHOLE_STACKS = 10_000
_BEGINNING = 3


def describe_functions(raws: Sequence[RawStacks], samples: float) -> list[dict[str, Any]]:
    """Return the functions that took most time, as rows of the document.

    A function on a stack several times counts once in its total. `cpu_pct` is the share of the time
    in the function itself, and in C code that it called, in which it used a CPU. The true shares
    are within `self_error_pct` and `total_error_pct` points of these in 95 of 100 cases.

    Args:
        raws: What each process has sampled.
        samples: How many equal samples that is.
    """
    own: dict[Function, list[float]] = {}
    total: dict[Function, float] = {}
    lines: dict[tuple[Function, int], float] = {}
    whole = 0.0
    for raw in raws:
        for _, _, stack, wall, cpu, _ in raw.cells:
            _, line, path = raw.stacks[stack]
            found = [raw.functions[one] for one in path]
            if found[-1:] == [NATIVE_THREADS]:  # the wall time is the caller's
                continue
            whole += wall
            for function in set(found):
                total[function] = total.get(function, 0.0) + wall
            if found:
                leaf = own.setdefault(found[-1], [0.0, 0.0])
                leaf[0] += wall
                leaf[1] += cpu
                lines[found[-1], line] = lines.get((found[-1], line), 0.0) + wall
    hottest: dict[Function, tuple[float, int]] = {}
    for (function, line), wall in lines.items():
        hottest[function] = max(hottest.get(function, (0.0, 0)), (wall, line))
    rows: list[dict[str, Any]] = []
    for function, seconds in total.items():
        wall, cpu = own.get(function, (0.0, 0.0))
        shares = {"self": wall / whole, "total": seconds / whole} if whole else {}
        rows.append(
            {
                "function": function.name,
                "file": function.file,
                "line": hottest[function][1] if function in hottest else function.line,
                "self_pct": round(100.0 * shares.get("self", 0.0), 2),
                "total_pct": round(100.0 * shares.get("total", 0.0), 2),
                **{
                    f"{key}_error_pct": round(100.0 * find_share_error(share, samples), 2)
                    for key, share in shares.items()
                },
                "cpu_pct": round(min(100.0, 100.0 * cpu / wall), 2) if wall else 0.0,
            }
        )
    rows.sort(key=lambda row: (-row["self_pct"], -row["total_pct"], row["function"]))
    callers = sorted(rows[_MOST_ROWS:], key=lambda row: -row["total_pct"])
    return rows[:_MOST_ROWS] + callers[: _MOST_ROWS // 2]


def build_profile(
    raws: Sequence[RawStacks], *, started: float, duration_sec: float
) -> dict[str, Any] | None:
    """Return the profile of a node's processes as plain data for its document.

    Args:
        raws: What each process has sampled.
        started: Unix time at which the run began.
        duration_sec: Its length; samples outside of it are left out.

    Returns:
        `rate_hz`, `samples` (of all threads), `equal_samples` (how many they count for in a share
        of the `wall` time, of the `cpu` time and of the `main` thread's time), `processes`,
        `wall_s`, `cpu_s`, `functions`, the job's own functions as `own`, and the tree as `flame`;
        None without samples.
    """
    inside = [_cut(raw, started, started + duration_sec) for raw in raws]
    inside = [raw for raw in inside if raw.cells]
    cells = [cell for raw in inside for cell in raw.cells]
    if not cells:
        return None
    samples = sum(cell[5] for cell in cells)
    wall_s = sum(cell[3] for cell in cells)
    rates = [raw.rate_hz for raw in raws if raw.rate_hz is not None]
    reached_hz = round(samples / wall_s, 1) if wall_s > 0 else 0.0
    tree = prune_tree(_grow(inside, started, duration_sec))
    flame = tree.as_dict()
    return {
        "rate_hz": rates[0] if rates else reached_hz,
        "samples": samples,
        "equal_samples": flame["equal_samples"],
        "processes": len(inside),
        "wall_s": round(wall_s, 3),
        "cpu_s": round(sum(cell[4] for cell in cells), 3),
        "functions": describe_functions(inside, tree.samples["wall"]),
        "own": tree.list_own()[:_MOST_OWN],
        "flame": flame,
    }


def _cut(raw: RawStacks, begin: float, end: float) -> RawStacks:
    """Return what was sampled between two Unix times."""
    # A bucket may reach beyond the run; the few samples there count as the run's.
    cells = [
        cell
        for cell in raw.cells
        if min(end, cell[0] + cell[1]) > max(begin, cell[0])
        or (cell[1] <= 0 and begin <= cell[0] <= end)
    ]
    return RawStacks(raw.functions, raw.stacks, cells, raw.rate_hz)


class TreeGrower:
    """Grows one tree from the stacks of several processes, or from the trees of several nodes.

    Args:
        width_sec: Length of a bucket, at least.
        duration_sec: Length of the run; the buckets are so wide that they are few.
    """

    def __init__(self, width_sec: float, duration_sec: float) -> None:
        self.tree = Profile()
        while self.tree.width_sec < width_sec or duration_sec / self.tree.width_sec > _MOST_BUCKETS:
            self.tree.width_sec *= 2
        count = max(1, math.ceil(duration_sec / self.tree.width_sec))
        self.tree.buckets = [{} for _ in range(count)]
        self._functions: dict[Function, int] = {}
        self._nodes: dict[tuple[int, int], int] = {}

    def find_node(self, parent: int, function: Function) -> int:
        """Return the tree node of a function below another node."""
        tree = self.tree
        name = self._functions.setdefault(function, len(self._functions))
        if name == len(tree.functions):
            tree.functions.append(function)
        node = self._nodes.setdefault((parent, name), len(self._nodes))
        if node == len(tree.parents):
            tree.parents.append(parent)
            tree.names.append(name)
        return node

    def add_time(self, node: int, seconds: float, wall: float, cpu: float) -> None:
        """Add times to a tree node, at some seconds from the start of the run."""
        at = int(seconds / self.tree.width_sec)
        bucket = self.tree.buckets[min(len(self.tree.buckets) - 1, max(0, at))]
        add_times(bucket, {node: (wall, cpu)})

    def add_tree(self, other: Profile) -> None:
        """Add the tree of another node; each run begins at its own start."""
        places: list[int] = []
        for parent, name in zip(other.parents, other.names, strict=True):
            under = -1 if parent < 0 else places[parent]
            places.append(self.find_node(under, other.functions[name]))
        pairs = [(one.sum_times(one.sum_nodes()), one.samples) for one in (self.tree, other)]
        self.tree.samples = {
            key: pool_samples((times[key], samples.get(key, 0.0)) for times, samples in pairs)
            for key in other.samples
        }
        for i, bucket in enumerate(other.buckets):
            for node, (wall, cpu) in bucket.items():
                self.add_time(places[node], (i + 0.5) * other.width_sec, wall, cpu)


def _grow(raws: Sequence[RawStacks], started: float, duration_sec: float) -> Profile:
    """Return the whole tree of what all processes have sampled."""
    widest = max((cell[1] for raw in raws for cell in raw.cells), default=0.0)
    grower = TreeGrower(widest, duration_sec)
    grower.tree.main_threads = _count_main_threads(raws, duration_sec)
    grower.tree.samples = count_samples(raws)
    sums: list[dict[int, float]] = []
    for raw in raws:
        sums.append({})
        for _, _, stack, wall, cpu, _ in raw.cells:
            sums[-1][stack] = sums[-1].get(stack, 0.0) + wall + cpu
    # Where there are very many stacks, rare ones keep only their outermost functions.
    every = sorted((seconds for of_raw in sums for seconds in of_raw.values()), reverse=True)
    least = every[_MOST_WHOLE_STACKS] if len(every) > _MOST_WHOLE_STACKS else 0.0
    for raw, of_raw in zip(raws, sums, strict=True):
        leaves: dict[int, int] = {}
        for start, length, stack, wall, cpu, _ in raw.cells:
            if stack not in leaves:
                root, _, path = raw.stacks[stack]
                node = grower.find_node(-1, Function(root, "", 0, True))
                is_whole = of_raw[stack] >= least
                for one in path if is_whole else path[:_BEGINNING]:
                    node = grower.find_node(node, raw.functions[one])
                if not is_whole and len(path) > _BEGINNING:
                    node = grower.find_node(node, Function(_OTHER, "", 0, True))
                leaves[stack] = node
            grower.add_time(leaves[stack], start + length / 2 - started, wall, cpu)
    return grower.tree


def _count_main_threads(raws: Sequence[RawStacks], duration_sec: float) -> float:
    """Return how many main threads ran at a time, on average over the time in which any ran."""
    lives = []
    for raw in raws:
        cells = [cell for cell in raw.cells if raw.stacks[cell[2]][0] == MAIN_THREAD]
        if cells:  # a thread is in some stack for as long as it lives
            begin = min(cell[0] for cell in cells)
            lives.append((begin, begin + sum(cell[3] for cell in cells)))
    whole = sum(end - begin for begin, end in lives)
    covered, until = 0.0, -math.inf
    for begin, end in sorted(lives):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    covered = min(covered, duration_sec)
    return max(1.0, whole / covered) if covered > 0 else 1.0


def count_samples(raws: Sequence[RawStacks]) -> dict[str, float]:
    """Return how many equal samples there are of all wall time, of CPU time, of main threads."""
    parts: dict[str, list[tuple[float, float]]] = {"wall": [], "cpu": [], "main": []}
    for raw in raws:
        natives = {
            i
            for i, (_, _, path) in enumerate(raw.stacks)
            if path and raw.functions[path[-1]] == NATIVE_THREADS
        }
        roots: dict[str, list[tuple[float, float, int, float, float, int]]] = {}
        for cell in raw.cells:
            roots.setdefault(raw.stacks[cell[2]][0], []).append(cell)
        for root, cells in roots.items():
            for key, place in (("wall", 3), ("cpu", 4), ("main", 3)):
                if key == "main" and root != MAIN_THREAD:
                    continue
                seen = [(c[0], c[1], float(c[place]), c[5]) for c in cells if c[place] > 0.0]
                seconds = sum(one[2] for one in seen)
                # Threads that are in no sample make the samples no fewer.
                native = [c[4] for c in cells if c[2] in natives] if key == "cpu" else []
                scale = 1.0 - sum(native) / seconds if native and seconds > 0.0 else 1.0
                equal = count_equal_samples((a, b, scale * sec, n) for a, b, sec, n in seen)
                parts[key].append((seconds, equal))
    return {key: pool_samples(found) for key, found in parts.items()}


def prune_tree(tree: Profile) -> Profile:
    """Return a tree of bounded size: small branches join one named `(other)` beside them."""
    totals = [[0.0, 0.0] for _ in tree.parents]
    for node, times in tree.sum_nodes().items():
        totals[node] = list(times)
    for node in range(len(totals) - 1, -1, -1):  # a child comes after its parent
        if (parent := tree.parents[node]) >= 0:
            totals[parent][0] += totals[node][0]
            totals[parent][1] += totals[node][1]
    whole = [
        sum(totals[node][i] for node, parent in enumerate(tree.parents) if parent < 0) or 1.0
        for i in range(2)
    ]
    weights = [max(wall / whole[0], cpu / whole[1]) for wall, cpu in totals]
    least = max(_LEAST_SHARE, sorted(weights, reverse=True)[: _MOST_NODES - 50][-1] * 0.999)
    small = Profile(
        width_sec=tree.width_sec,
        buckets=[{} for _ in tree.buckets],
        main_threads=tree.main_threads,
        samples=tree.samples,
    )
    functions: dict[Function, int] = {}
    places: dict[int, int] = {}
    others: dict[int, int] = {}
    joined: set[int] = set()

    def add_node(parent: int, function: Function) -> int:
        small.parents.append(parent)
        small.names.append(functions.setdefault(function, len(functions)))
        return len(small.parents) - 1

    for node, parent in enumerate(tree.parents):  # a parent comes before its children
        under = -1 if parent < 0 else places[parent]
        if parent < 0 or (weights[node] >= least and under not in joined):
            places[node] = add_node(under, tree.functions[tree.names[node]])
        elif under in joined:
            places[node] = under
        else:
            if under not in others:
                others[under] = add_node(under, Function(_OTHER, "", 0, True))
                joined.add(others[under])
            places[node] = others[under]
    small.functions = list(functions)
    for bucket, into in zip(tree.buckets, small.buckets, strict=True):
        for node, times in bucket.items():
            add_times(into, {places[node]: times})
    while sum(map(len, small.buckets)) > _MOST_CELLS and len(small.buckets) > 8:
        for into, later in zip(small.buckets[::2], small.buckets[1::2], strict=False):
            add_times(into, later)
        small.buckets = small.buckets[::2]
        small.width_sec *= 2
    return small
