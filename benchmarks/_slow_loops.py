"""Training loops with one cause of slowness each, timed by a tool: run by `benchmarks.steps`.

`python _slow_loops.py TOOL CAUSE [PORT]`, as one process or as the ranks of torchrun. It needs
torch; TOOL is `ours` or `traceml`, whose packages are in environments of their own.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

# The folder of a script is first on its path, and `profile` here would hide the interpreter's.
sys.path[:] = [path for path in sys.path if path not in ("", str(Path(__file__).parent))]

import torch  # noqa: E402 - see above

STEPS = 60
CAUSES = {
    "slow loader": ("input", None, "input"),
    "slow loader of one rank": ("straggler", 1, "input"),
    "slow forward of one rank": ("straggler", 1, "forward"),
    "slow forward": ("part", None, "forward"),
    "slow backward": ("part", None, "backward"),
    "slow optimizer": ("part", None, "optimizer"),
    "garbage collections": ("garbage", None, None),
    "page faults": ("page_faults", None, None),
    "small batches": ("short_steps", None, None),
    "checkpoints too often": ("checkpoint", None, "checkpoint"),
    "evaluation too often": ("evaluation", None, "evaluation"),
    "a request at each step": ("rest", None, "rest"),
    "busy CPUs": ("contended", None, None),
    "slow first step": ("warm_up", None, None),
    "growing steps": ("growing", None, "forward"),
}
"""Cause → what the report must say: the cause's word there, the rank and the part."""

RANKS = {"slow loader of one rank": 3, "slow forward of one rank": 3}
RANK = int(os.environ.get("RANK", "0"))


class _SlowBackward(torch.autograd.Function):  # type: ignore[misc]  # untyped where torch is not
    @staticmethod
    def forward(ctx: Any, rows: Any, seconds: float) -> Any:
        ctx.seconds = seconds
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        time.sleep(ctx.seconds)
        return gradient, None


class Model(torch.nn.Module):  # type: ignore[misc]  # untyped where torch is not
    """A layer whose passes are as slow as the cause says."""

    def __init__(self, cause: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.cause = cause
        self.steps = 0

    def forward(self, rows: Any) -> Any:
        self.steps += 1
        cause, seconds = self.cause, 0.003
        if cause == "small batches":
            return self.layer(rows)
        if cause == "slow forward" or (cause == "slow forward of one rank" and RANK == 1):
            seconds = 0.03
        elif cause == "growing steps":
            seconds = 0.001 * self.steps
        elif cause == "slow first step" and self.steps == 1:
            seconds = 1.5
        time.sleep(seconds)
        if cause == "busy CPUs":
            sum(range(600_000))
        elif cause == "page faults":
            fresh = mmap.mmap(-1, 48 * 2**20)
            fresh[:: mmap.PAGESIZE] = bytes(len(fresh) // mmap.PAGESIZE)
            fresh.close()
        elif cause == "garbage collections":
            gc.collect()
        return _SlowBackward.apply(self.layer(rows), 0.03 if cause == "slow backward" else 0.003)


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]  # untyped where torch is not
    """Rows that are as slow to read as the cause says."""

    def __init__(self, cause: str) -> None:
        slow = cause == "slow loader" or (cause == "slow loader of one rank" and RANK == 1)
        self.seconds = 0.0075 if slow else 0.0
        self.count = 12_000 if cause == "small batches" else 4 * STEPS

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.ones(64)


class SlowOptimizer(torch.optim.SGD):  # type: ignore[misc]  # untyped where torch is not
    """Plain descent, with a wait."""

    seconds = 0.0

    def step(self, closure: Any = None) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return super().step(closure)


class Ours:
    """`mlflow_perf.steps` and `part`; the session is that of the process above."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        import mlflow_perf

        self.passes, self.part = mlflow_perf.steps, mlflow_perf.part

    def step(self) -> Any:
        return nullcontext()


class TraceML:
    """TraceML's own division of torch's passes; it knows no other parts."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        import traceml_ai

        traceml_ai.init(mode="auto")
        self._model, self._traceml = model, traceml_ai

    def passes(self, loader: Any) -> Any:
        return loader

    def part(self, _name: str) -> Any:
        return nullcontext()

    def step(self) -> Any:
        return self._traceml.trace_step(self._model)


def train(tool_class: type, cause: str, port: str) -> None:
    """Train for a few seconds."""
    size = 4
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    model = net = Model(cause)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = SlowOptimizer(net.parameters(), lr=1e-3)
    optimizer.seconds = 0.03 if cause == "slow optimizer" else 0.0
    tool = tool_class(net, optimizer)
    loader = torch.utils.data.DataLoader(Rows(cause), batch_size=size)
    kept = [[i] for i in range(400_000)] if cause == "garbage collections" else []
    for number, rows in enumerate(tool.passes(loader)):
        with tool.step():
            optimizer.zero_grad()
            with tool.part("forward"):
                loss = net(rows).sum()
            with tool.part("backward"):
                loss.backward()
            with tool.part("optimizer"):
                optimizer.step()
            if cause == "evaluation too often" and number % 5 == 4:
                with tool.part("evaluation"), torch.no_grad():
                    for _ in range(20):
                        model(rows)
            elif cause == "checkpoints too often" and number % 5 == 4:
                with tool.part("checkpoint"), tempfile.NamedTemporaryFile() as file:
                    torch.save(torch.ones(2**22), file.name)
                    os.sync()
                    time.sleep(0.05)  # a slower disk than this one
            elif cause == "a request at each step":
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).read()
    del kept
    if ranks > 1:
        torch.distributed.destroy_process_group()


class _Nothing:
    """A model, a loss and an optimizer that do nothing."""

    def backward(self) -> None: ...

    def step(self, closure: Any = None) -> None: ...


class _Identity(torch.nn.Module):  # type: ignore[misc]  # untyped where torch is not
    def forward(self, rows: Any) -> Any:
        return rows


def measure_cost(name: str) -> None:
    """Print the CPU time of a step with three parts, and of the bare one, in µs, as JSON."""
    count, rounds = 1000, 25
    model, loss, optimizer = _Identity(), _Nothing(), _Nothing()

    def run_bare() -> None:
        for item in range(count):
            model(item)
            loss.backward()
            optimizer.step()

    with _session() if name == "ours" else nullcontext():
        if name == "ours":
            from mlflow_perf import part, steps

            def run_timed() -> None:
                for item in steps(range(count)):
                    with part("forward"):
                        model(item)
                    with part("backward"):
                        loss.backward()
                    with part("optimizer"):
                        optimizer.step()

        else:
            import traceml_ai

            traceml_ai.init(mode="manual")
            timed_model = traceml_ai.wrap_forward(_Identity())
            timed_optimizer = traceml_ai.wrap_optimizer(_Nothing())

            def run_timed() -> None:
                for item in traceml_ai.wrap_dataloader_fetch(list(range(count))):
                    with traceml_ai.trace_step(timed_model):
                        timed_model(item)
                        traceml_ai.wrap_backward(loss).backward()
                        timed_optimizer.step()

        times: dict[str, list[float]] = {"bare": [], "timed": []}
        for _ in range(rounds):
            for what, run in (("bare", run_bare), ("timed", run_timed)):
                start = time.thread_time()  # a wall time has waits for the CPU in it
                run()
                times[what].append((time.thread_time() - start) / count * 1e6)
    print(json.dumps({f"{what}_us": statistics.median(found) for what, found in times.items()}))


@contextmanager
def _session() -> Iterator[None]:
    """A session of this process that spools, as that of a rank does."""
    from pathlib import Path

    from mlflow_perf.recorders import current
    from mlflow_perf.recorders.operations import OperationMetrics

    with tempfile.TemporaryDirectory() as folder:
        current.activate(OperationMetrics(), folder=Path(folder), spooled=True)
        yield
        current.deactivate()


if __name__ == "__main__":
    tool, cause = sys.argv[1:3]
    if cause == "cost":
        measure_cost(tool)
    else:
        train({"ours": Ours, "traceml": TraceML}[tool], cause, (sys.argv[3:] or [""])[0])
