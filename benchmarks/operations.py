"""The cost of operations and transfers, each beside its peer in the same run.

The peers are ProxyStore's `StoreMetrics`, DDSketch's Python library, a bare pair of
`perf_counter_ns`, and vLLM's way of reducing transfers (a list per figure, and numpy). Ours and the
peer take turns, and the best of several rounds counts, so that a busy machine distorts neither. Run
it with `python -m benchmarks.operations`; `--json` prints JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROUNDS = 60
LOOPS = 1000
# Many short rounds: some of them run undisturbed even on a busy machine.


@dataclass(frozen=True)
class Row:
    """One measured figure.

    Attributes:
        what: What was measured.
        peer: Name of the peer.
        peer_value: The peer's figure.
        value: Ours.
        unit: Unit of both.
        target: The target, in words.
        met: Whether it is met.
    """

    what: str
    peer: str
    peer_value: float
    value: float
    unit: str
    target: str
    met: bool


def best(*functions: Callable[[], Any], loops: int = LOOPS, rounds: int = ROUNDS) -> list[float]:
    """Return the least time of one call of each, in µs, measured in turns."""
    least = [float("inf")] * len(functions)
    for _ in range(rounds):
        for place, function in enumerate(functions):
            started = time.perf_counter_ns()
            for _ in range(loops):
                function()
            least[place] = min(least[place], (time.perf_counter_ns() - started) / loops / 1e3)
    return least


def add_time() -> list[Row]:
    """Record one time, key known: by ProxyStore, by us, and by us into a spool file."""
    from proxystore.store.metrics import StoreMetrics

    from mlflow_perf import OperationMetrics

    rows = []
    key = ("store", "0123456789abcdef")
    with tempfile.TemporaryDirectory() as folder:
        peer, ours, spooled = StoreMetrics(), OperationMetrics(), OperationMetrics()
        spooled.spool_to(Path(folder))
        theirs, mine, written = best(
            lambda: peer.add_time("op", key, 1.5),
            lambda: ours.add_time("op", key, 1.5),
            lambda: spooled.add_time("op", key, 1.5),
        )
        spooled.spool_to(None)
    what = "add_time, key known, one thread"
    rows.append(Row(what, "ProxyStore", theirs, mine, "µs", "<= 1.0 x", mine <= theirs))
    what = "the same, into the spool file of a worker"
    rows.append(Row(what, "ProxyStore", theirs, written, "µs", "<= 1.0 x", written <= theirs))
    theirs, mine = (_threads(recorder) for recorder in (StoreMetrics(), OperationMetrics()))
    what = "add_time, four threads (ProxyStore loses counts then)"
    rows.append(Row(what, "ProxyStore", theirs, mine, "µs", "<= 1.0 x", mine <= theirs))
    return rows


def _threads(recorder: Any) -> float:
    def work() -> None:
        for number in range(20_000):
            recorder.add_time("op", number % 4, 1.5)

    least = float("inf")
    for _ in range(3):
        threads = [threading.Thread(target=work) for _ in range(4)]
        started = time.perf_counter_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        least = min(least, (time.perf_counter_ns() - started) / 80_000 / 1e3)
    return least


def timers() -> list[Row]:
    """Time a block: against a bare pair of clock readings, with and without a session."""
    import mlflow_perf
    from mlflow_perf import OperationMetrics

    recorder = OperationMetrics()

    def pair() -> int:
        started = time.perf_counter_ns()
        return time.perf_counter_ns() - started

    def block() -> None:
        with recorder.time("op"):
            pass

    def idle() -> None:
        with mlflow_perf.time("op"):
            pass

    def nothing() -> None:
        pass

    bare, timed, without, empty = best(pair, block, idle, nothing)
    over = timed - bare
    return [
        Row("with perf.time(...), over the pair", "perf_counter_ns pair", bare, over, "µs",
            "<= 1.5 µs", over <= 1.5),
        Row("with mlflow_perf.time(...), no session", "perf_counter_ns pair", bare,
            without - empty, "µs", "<= 0.3 µs", without - empty <= 0.3),
    ]  # fmt: skip


def sketch() -> list[Row]:
    """Count one value for percentiles: DDSketch's library and ours, both at 1%."""
    from ddsketch import DDSketch

    from mlflow_perf.model.sketch import Sketch

    peer, ours = DDSketch(0.01), Sketch()
    theirs, mine = best(lambda: peer.add(1.5), lambda: ours.add(1.5))
    return [Row("sketch, one value", "ddsketch", theirs, mine, "µs", "less", mine < theirs)]


def memory() -> list[Row]:
    """Grow by 10^7 operations over 10^6 keys; ProxyStore's figure is of its keys used once."""
    loop = "for r in range({}):\n for n in range(10**6): m.add_time('op', n, 1.5 + n % 1000)"
    mine = _resident("from mlflow_perf import OperationMetrics as M; m = M()", loop.format(10))
    theirs = _resident(
        "from proxystore.store.metrics import StoreMetrics as M; m = M()", loop.format(1)
    )
    what = "memory of 10^7 operations over 10^6 keys"
    return [Row(what, "ProxyStore", theirs, mine, "MB", "<= 50 MB", mine <= 50)]


def _resident(before: str, work: str) -> float:
    """Return by how many MB a fresh process grows while it does some work."""
    rss = "int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize() / 2**20"
    script = f"import resource\n{before}\nb = {rss}\n{work}\nprint({rss} - b)"
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    return float(printed)


def transfers(count: int = 1_000_000) -> list[Row]:
    """Reduce 10^6 transfers: vLLM's lists and numpy, and ours."""
    import numpy as np

    def reduce_lists(data: dict[str, list[float]]) -> float:
        arrays = [np.asarray(values) for values in data.values()]
        xfer, post, size, descriptors = arrays
        (size / 2**20).sum(), descriptors.mean(), post.mean(), np.percentile(post, 90)
        return float(np.percentile(xfer, 90))

    space: dict[str, Any] = {}
    exec(_LISTS + f"fill({count})", space)
    exec(_OURS + f"fill({count})", space)
    theirs = best(lambda: reduce_lists(space["data"]), loops=1, rounds=5)[0]
    mine = best(space["stats"].reduce, loops=20)[0]
    p90 = space["stats"].figures()["p90_xfer_time_ms"] / 1e3
    off = abs(p90 / reduce_lists(space["data"]) - 1) * 100
    lists_mb = _resident(_LISTS, f"fill({count})")
    stats_mb = _resident(_OURS, f"fill({count})")
    return [
        Row(f"reduce() after {count:,} transfers", "lists and numpy", theirs, mine, "µs",
            "<= 1/100", mine <= theirs / 100),
        Row("memory of them", "lists and numpy", lists_mb, stats_mb, "MB",
            "<= 1/100", stats_mb <= lists_mb / 100),
        Row("P90 off by", "numpy.percentile", 0.0, off, "%", "<= 1%", off <= 1),
    ]  # fmt: skip


_LISTS = """
import random
names = ("transfer_duration", "post_duration", "bytes_transferred", "num_descriptors")
data = {name: [] for name in names}
def fill(count):
    number = random.Random(7)
    for _ in range(count):
        took = number.lognormvariate(7, 1)
        made = (took / 1e6, took / 1e7, int(took) * 1024, 64)
        for values, value in zip(data.values(), made):
            values.append(value)
"""
_OURS = """
import random
from types import SimpleNamespace
from mlflow_perf import NixlKVConnectorStats
stats = NixlKVConnectorStats()
def fill(count):
    number = random.Random(7)
    telemetry = SimpleNamespace(descCount=64)
    for _ in range(count):
        took = number.lognormvariate(7, 1)
        telemetry.xferDuration, telemetry.postDuration = took, took / 10
        telemetry.totalBytes = int(took) * 1024
        stats.record_transfer(telemetry)
"""


def run() -> list[Row]:
    """Measure everything."""
    return [*add_time(), *timers(), *sketch(), *memory(), *transfers()]


def main() -> None:
    """Print a row per figure: peer, ours, ratio, target."""
    rows = run()
    if "--json" in sys.argv:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{'what':58}{'peer':>24}{'theirs':>12}{'ours':>10} unit{'ratio':>9}  target")
    for row in rows:
        ratio = f"{row.value / row.peer_value:.3f}" if row.peer_value else "–"
        print(
            f"{row.what:58}{row.peer:>24}{row.peer_value:12.3f}{row.value:10.3f} {row.unit:4}"
            f"{ratio:>9}  {row.target}{'' if row.met else '  MISSED'}"
        )


if __name__ == "__main__":
    main()
