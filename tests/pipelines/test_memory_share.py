"""The memory of a machine, shared by steps side by side."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from pathlib import Path

from mlflow_perf.pipelines.memory_share import MemoryShare


def test_never_more_is_held_than_there_is(tmp_path: Path) -> None:
    """Twelve threads that take a third each: at most three hold their share at any time."""
    share = MemoryShare(tmp_path, 900.0, 100.0)
    lock, held, most = threading.Lock(), [0], [0]

    def work() -> None:
        with share.take(300.0, 1.0, is_stopped=lambda: False):
            with lock:
                held[0] += 1
                most[0] = max(most[0], held[0])
            with lock:
                held[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 1 <= most[0] <= 3
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == []


def test_a_share_is_refused_until_another_is_given_back(tmp_path: Path) -> None:
    """Memory and cores both count; a step larger than the machine runs alone."""
    share = MemoryShare(tmp_path, 1000.0, 4.0)
    stop = lambda: True  # noqa: E731 - gives up at the first refusal
    with ExitStack() as first:
        assert first.enter_context(share.take(700.0, 1.0, is_stopped=stop))
        with share.take(400.0, 1.0, is_stopped=stop) as held:
            assert not held
        with share.take(100.0, 4.0, is_stopped=stop) as held:
            assert not held
        with share.take(300.0, 3.0, is_stopped=stop) as held:
            assert held
    with share.take(5000.0, 99.0, is_stopped=stop) as held:
        assert held


def test_a_killed_worker_holds_nothing(tmp_path: Path) -> None:
    """Its ticket is dropped, and so is a file that was cut off while it was written."""
    share = MemoryShare(tmp_path, 1000.0, 4.0)
    with share.take(1.0, 1.0, is_stopped=lambda: True):
        (file,) = tmp_path.iterdir()
        tickets = json.loads(file.read_text())
        gone = {**tickets[0], "id": "gone", "pid": 2**22 + 1, "memory_mb": 1000.0}
        file.write_text(json.dumps([gone]))
        with share.take(900.0, 1.0, is_stopped=lambda: True) as held:
            assert held
        file.write_text("[{")
        with share.take(900.0, 1.0, is_stopped=lambda: True) as held:
            assert held
