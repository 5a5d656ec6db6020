"""What `steps` leaves as it is: length, attributes, copies, and all of it without a session."""

from __future__ import annotations

import asyncio
import copy
import pickle
import weakref
from collections.abc import AsyncIterator

import pytest

import mlflow_perf
from mlflow_perf.recorders.steps import StepMetrics, steps


def test_the_items_keep_their_length_and_attributes(session: StepMetrics) -> None:
    """`len`, an index and every attribute are the loader's; what has no length stays so."""

    class Loader(list[int]):
        batch_size = 8

    passes = steps(Loader([1, 2, 3]))
    assert (len(passes), passes.batch_size, passes[1], list(passes)) == (3, 8, 2, [1, 2, 3])
    endless = steps(iter([1, 2]))
    assert endless
    with pytest.raises(TypeError, match="has no len"):
        len(endless)
    assert list(endless) == [1, 2]
    with pytest.raises(AttributeError, match="sampler"):
        steps([1]).sampler  # noqa: B018 - it must raise
    with pytest.raises(TypeError, match="not iterable"):
        list(steps(3))


def test_without_a_session_the_items_are_iterated_directly() -> None:
    """Nothing is measured, and the iterator is the items' own."""
    items = [1, 2, 3]
    assert type(iter(mlflow_perf.steps(items))) is type(iter(items))
    for _ in mlflow_perf.steps(items):
        with mlflow_perf.part("forward"):
            pass


def test_the_loader_can_be_copied(session: StepMetrics) -> None:
    """A copy and a pickle are loaders of their own."""
    assert list(copy.deepcopy(steps([1, 2]))) == [1, 2]
    assert list(pickle.loads(pickle.dumps(steps([1, 2])))) == [1, 2]


@pytest.mark.parametrize("kind", ["for", "async for"])
def test_the_body_of_the_loop_may_free_its_item(session: StepMetrics, kind: str) -> None:
    """A batch is large: no variable of ours keeps it while the body works."""

    class Batch:
        pass

    freed = []

    def work(batch: Batch) -> weakref.ref[Batch]:
        return weakref.ref(batch)

    async def loop() -> None:
        async def load() -> AsyncIterator[Batch]:
            yield Batch()

        async for batch in steps(load()):
            left = work(batch)
            del batch
            freed.append(left() is None)

    if kind == "for":
        for batch in steps(map(lambda _: Batch(), range(2))):  # noqa: C417 - it keeps no item
            left = work(batch)
            del batch
            freed.append(left() is None)
    else:
        asyncio.run(loop())
    assert freed == [True] * len(freed)
    assert freed
