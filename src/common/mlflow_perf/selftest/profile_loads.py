"""Known shares of time of functions, compared with the stack sampler's figures.

Each load measures itself with the thread's clocks. It returns 100, how much of that time, in per
cent, the profile has in the right function, and how many points the number of samples leaves open.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from mlflow_perf.model.exactness import find_share_error
from mlflow_perf.model.profile_building import count_samples
from mlflow_perf.model.samples import RawStacks
from mlflow_perf.recorders.collect import collect_stacks
from mlflow_perf.recorders.profile import live

_WALL, _CPU = 3, 4


def _burn(seconds: float) -> None:
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        sum(range(200))


def _half(seconds: float) -> None:
    _burn(0.5 * seconds)


def _third(seconds: float) -> None:
    _burn(0.3 * seconds)


def _rest(seconds: float) -> None:
    time.sleep(0.2 * seconds)


def _recurse(depth: int, seconds: float) -> None:
    if depth:
        _recurse(depth - 1, seconds)
    else:
        _burn(seconds)


def _generate(seconds: float) -> Iterator[None]:
    for _ in range(10):
        _burn(seconds / 10)
        yield


_BLOCK = b"\xa5" * (1 << 20)


def _digest(seconds: float) -> None:
    """Compute in C code that lets go of the interpreter's lock."""
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        hashlib.sha256(_BLOCK)


Agreement = tuple[float, float, float]
"""100, the share of the time that is in the right function, and the error of one function's."""


def _agree(true: Mapping[str, float], raws: list[RawStacks], place: int) -> Agreement:
    """Return the share of the time that is in the right function, in per cent."""
    found = dict.fromkeys(true, 0.0)
    for raw in raws:
        for cell in raw.cells:
            names = {raw.functions[one].name for one in raw.stacks[cell[2]][2]}
            for name in names & found.keys():
                found[name] += cell[place]
    whole, seen = sum(true.values()), sum(found.values()) or 1.0
    samples = count_samples(raws)["wall" if place == _WALL else "cpu"]
    errors = [find_share_error(seconds / whole, samples) for seconds in true.values()]
    right = sum(min(true[name] / whole, found[name] / seen) for name in true)
    return 100.0, 100.0 * right, 100.0 * max(errors)


def _time_parts(
    parts: list[tuple[str, Callable[[], object]]], clock: Callable[[], float]
) -> dict[str, float]:
    took: dict[str, float] = {}
    for name, part in parts:
        begin = clock()
        part()
        took[name] = took.get(name, 0.0) + clock() - begin
    return took


def profile_split(_: Path) -> Agreement:
    """Spend 50, 30 and 20% of the time in three functions, recursion and a generator, in turns."""
    turn: list[tuple[str, Callable[[], object]]] = [
        ("_half", lambda: _half(0.1)),
        ("_third", lambda: _third(0.1)),
        ("_rest", lambda: _rest(0.1)),
        ("_recurse", lambda: _recurse(20, 0.02)),
        ("_generate", lambda: list(_generate(0.02))),
    ]
    window = live.begin(None, None)
    took = _time_parts(turn * 25, time.perf_counter)
    return _agree(took, [live.end(window)], _WALL)


def profile_short(_: Path) -> Agreement:
    """Spend 200 ms in three functions; of five times the median, because others disturb one."""
    parts: list[tuple[str, Callable[[], object]]] = [
        ("_half", lambda: _half(0.2)),
        ("_third", lambda: _third(0.2)),
        ("_rest", lambda: _rest(0.2)),
    ]
    found = []
    for _time in range(5):
        window = live.begin(None, None)
        took = _time_parts(parts, time.perf_counter)
        found.append(_agree(took, [live.end(window)], _WALL))
    return sorted(found)[2]


def profile_threads(_: Path) -> Agreement:
    """Compute in Python, compute in C without the lock, and wait, in three threads at once."""
    took: dict[str, float] = {}

    def work(name: str, part: Callable[[float], None], seconds: float) -> None:
        took.update(_time_parts([(name, lambda: part(seconds))], time.thread_time))

    window = live.begin(None, None)
    threads = [
        threading.Thread(target=work, args=("_half", _half, 2.0)),
        threading.Thread(target=work, args=("_digest", _digest, 1.0)),
        threading.Thread(target=work, args=("_rest", _rest, 5.0)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _agree(took, [live.end(window)], _CPU)


def profile_children(folder: Path) -> Agreement:
    """Compute in two child processes that are forked, three parts to one."""
    live.offer(folder, None)
    took = {}
    for name, part, seconds in (("_half", _half, 3.0), ("_digest", _digest, 0.5)):
        pid = os.fork()
        if not pid:
            part(seconds)
            os._exit(0)
        usage = os.wait4(pid, 0)[2]
        took[name] = usage.ru_utime + usage.ru_stime
    live.withdraw()
    return _agree(took, collect_stacks(folder), _CPU)


PROFILE_LOADS = (profile_split, profile_short, profile_threads, profile_children)
"""The loads, by whose names the checks run them."""
