"""Another thread's stack is read in one piece; the job's objects and collector stay as they are."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from tests.alone import alone

from mlflow_perf.recorders.profile import stacks
from mlflow_perf.recorders.profile.stacks import (
    find_line,
    find_obstacle,
    list_idents,
    read_stack,
    read_stack_after,
)

DEPTH = 80


@contextmanager
def deep_thread(depth: int) -> Iterator[int]:
    """Give the ident of a thread that waits in a function which has called itself."""
    there, over = threading.Event(), threading.Event()

    def descend(left: int) -> None:
        if left:
            descend(left - 1)
        else:
            there.set()
            over.wait(60)

    thread = threading.Thread(target=descend, args=(depth - 1,))
    thread.start()
    assert there.wait(60)
    try:
        assert thread.ident is not None
        yield thread.ident
    finally:
        over.set()
        thread.join()


def test_the_whole_stack_is_read_from_the_inside() -> None:
    """Each frame is there once, with the line at which it is."""
    with deep_thread(DEPTH) as ident:
        places = read_stack(ident)
    names = [code.co_name for code, _ in places]
    inside = names.index("descend")
    assert names[inside : inside + DEPTH] == ["descend"] * DEPTH
    assert names[-1] == "_bootstrap"
    first = deep_thread.__wrapped__.__code__.co_firstlineno  # type: ignore[attr-defined]
    lines = {find_line(place) for place in places[inside + 1 : inside + DEPTH]}
    assert lines == {first + 7}, "the line of the call"


def test_of_a_deep_recursion_only_the_innermost_frames_are_read() -> None:
    """Each frame that is looked at takes memory of the job until its function returns."""
    limit, size = sys.getrecursionlimit(), threading.stack_size(256 * 2**20)
    sys.setrecursionlimit(20_000)
    try:
        with deep_thread(10_000) as ident:
            names = [code.co_name for code, _ in read_stack(ident)]
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)
    assert len(names) == 2_000
    assert names[-1] == "descend"
    assert "wait" in names[:3]


def test_a_thread_that_is_gone_has_no_stack() -> None:
    """Nor is that an error: threads end at any time."""
    with deep_thread(1) as ident:
        pass
    assert ident not in sys._current_frames() or read_stack(ident)  # given again
    assert read_stack(-1) == []


def test_calls_before_a_stack_is_read_are_part_of_the_same_look() -> None:
    """What they returned is known also if a later one fails; then there is no stack."""
    returned: list[object] = []
    places = read_stack_after(threading.get_ident(), [(abs, (-1,)), (len, ("",))], returned)
    assert returned == [1, 0]
    assert [code.co_name for code, _ in places if code.co_filename == __file__] == [
        "test_calls_before_a_stack_is_read_are_part_of_the_same_look"
    ]
    returned.clear()
    with pytest.raises(ZeroDivisionError):
        read_stack_after(threading.get_ident(), [(abs, (-1,)), (divmod, (1, 0))], returned)
    assert returned == [1]


def test_nothing_is_read_beside_other_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their threads do not stand still, and Python would give their frames, too."""
    assert find_obstacle() == ""
    assert threading.get_ident() in list_idents()
    monkeypatch.setattr(stacks, "_list_interpreters", partial(list, (0, 1)))
    assert find_obstacle() == "a process with sub-interpreters"
    assert list_idents() == []
    returned: list[int] = []
    assert read_stack_after(threading.get_ident(), [(abs, (-1,))], returned) == []
    assert returned == [1]


@pytest.mark.parametrize("is_on", [True, False])
def test_the_jobs_collector_stays_as_it_is(*, is_on: bool) -> None:
    """Reading neither switches it on nor off, whether it is read or fails."""
    before = gc.isenabled()
    try:
        (gc.enable if is_on else gc.disable)()
        read_stack(threading.get_ident())
        assert gc.isenabled() is is_on
        with pytest.raises(TypeError):
            read_stack([])  # type: ignore[arg-type]
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are objects already")
@alone
def test_no_garbage_is_collected_in_the_midst_of_it() -> None:
    """Python 3.11 makes the frames' objects while they are read, and may collect garbage for each.

    A finalizer would let the other thread go on, and the interpreter would then write into the
    memory of a frame that has ended.
    """
    began: list[str] = []
    gc.collect()
    gc.callbacks.append(lambda phase, _: began.append(phase) if phase == "start" else None)
    before = gc.get_threshold()
    with deep_thread(DEPTH) as ident:
        gc.set_threshold(1)
        count = len(began)
        places = read_stack(ident)
        count = len(began) - count
        gc.set_threshold(*before)
    gc.callbacks.clear()
    assert len(places) >= DEPTH
    assert count < DEPTH / 2, "collections of what the function itself makes, before it reads"
