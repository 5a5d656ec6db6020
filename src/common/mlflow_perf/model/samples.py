"""What one process has sampled: its functions, its stacks, and the seconds of each.

Each Python process of a job imports this, beside the job: so it imports little.
"""

from __future__ import annotations

from typing import NamedTuple

FINEST_SEC = 0.25
"""Width of the narrowest bucket; each wider one is twice as wide as the one before."""

MAIN_THREAD, OTHER_THREADS, CHILD_PROCESSES = "main thread", "other threads", "child processes"
"""The roots of the tree: each stack is below one of them."""


class Function(NamedTuple):
    """A function of the job's code.

    Attributes:
        name: Its name, with its class.
        file: Its file, relative to the working folder or to the package.
        line: Its first line.
        is_library: Whether it belongs to an installed package or to Python itself.
    """

    name: str
    file: str
    line: int
    is_library: bool


NATIVE_THREADS = Function("(native threads)", "", 0, True)
"""The CPU time of threads that Python does not know, below the function that waits for them."""


class Sample(NamedTuple):
    """Where a thread was seen; never its data.

    Attributes:
        root: `main thread`, `other threads` or `child processes`.
        line: Line of the innermost frame.
        path: The functions from the outermost to the innermost.
    """

    root: str
    line: int
    path: tuple[Function, ...]


class RawStacks(NamedTuple):
    """What one process has sampled.

    Attributes:
        functions: The functions.
        stacks: Root, line of the innermost frame, then the functions from the outermost to it.
        cells: Unix time, length in seconds, stack, wall seconds, CPU seconds, number of samples.
        rate_hz: The rate that was asked for; None for the default one.
    """

    functions: list[Function]
    stacks: list[tuple[str, int, tuple[int, ...]]]
    cells: list[tuple[float, float, int, float, float, int]]
    rate_hz: float | None = None
