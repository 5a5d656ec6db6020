"""Work that a thread of its own does."""

from __future__ import annotations

import threading

from mlflow_perf.session.aside import Aside


def test_one_piece_of_work_at_a_time() -> None:
    """What comes while the first one is done is left out; what comes after it is not."""
    done: list[str] = []
    has_begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        has_begun.set()
        assert may_end.wait(60)
        done.append("first")

    aside = Aside("test")
    aside.wait(60)
    aside.begin(first)
    assert has_begun.wait(60)
    aside.begin(lambda: done.append("second"))
    aside.wait(0.0)
    may_end.set()
    aside.wait(60)
    aside.begin(lambda: done.append("third"))
    aside.wait(60)
    assert done == ["first", "third"]
