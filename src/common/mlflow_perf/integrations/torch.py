"""torch's training loops as steps: the wait for the loader, forward, backward, optimizer.

A pass over a `DataLoader` is a loop, unless `mlflow_perf.steps` or a training library drives one
around it: `step` where it trains, else `evaluation`. Within a step, a fetch from a pass that began
before it, as one of the loaders of a `zip`, is a wait of the step.

`forward` is the time from the batch to the call of `backward`, as hooks of modules would be saved
with the model. On a GPU these are the times of the calls: the work itself is waited for where the
code asks for a result.
"""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from itertools import count
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from mlflow_perf.integrations._training_loops import IdentityMap, Patches, aside
from mlflow_perf.recorders.steps.loop import Loop, enter, innermost_loop, leave, open_loop

_NEVER = 2**63
_patches = Patches()
_handles: list[Any] = []
_passes: IdentityMap[Loop] = IdentityMap()
_made_ns: IdentityMap[int] = IdentityMap()  # when each pass over a loader began
# Loop → the end of its last backward pass or update, and since when an update runs.
_marks: weakref.WeakKeyDictionary[Loop, list[int]] = weakref.WeakKeyDictionary()
_trained: ContextVar[Loop | None] = ContextVar("mlflow_perf_trained", default=None)
"""The last pass of this thread that has ended and trained."""


def follow(module: ModuleType) -> None:
    """Follow the loaders, backward passes and optimizers of this process.

    Args:
        module: `torch`.
    """
    import torch.optim.optimizer as optimizers
    import torch.utils.data.dataloader as loaders

    iterator = loaders._BaseDataLoaderIter  # noqa: SLF001
    for begin in ("__init__", "_reset"):  # the latter where workers are kept from pass to pass
        _patches.replace(iterator, begin, _note_begin)
    _patches.replace(iterator, "__next__", _time_fetch)
    _patches.replace(module.autograd, "backward", _time_backward)
    _patches.replace(module, "save", _time_save)
    if not _handles:
        _handles.append(optimizers.register_optimizer_step_pre_hook(_begin_update))
        _handles.append(optimizers.register_optimizer_step_post_hook(_end_update))


def unfollow() -> None:
    """Take everything back."""
    _patches.undo()
    while _handles:
        _handles.pop().remove()


def _find_loop() -> Loop | None:
    """Return the loop whose step runs now, unless its code divides it by itself."""
    loop = innermost_loop()
    if loop is None or loop.is_divided or loop.is_aside or not loop.is_in_step:
        return None
    return loop


def _time_backward(original: Any) -> Any:
    def backward(*args: Any, **kwargs: Any) -> Any:
        loop = _find_loop()
        if loop is None:
            return original(*args, **kwargs)
        start_ns = perf_counter_ns()
        marks = _marks.setdefault(loop, [0, 0])
        loop.add("forward", start_ns - max(loop.begun_ns, marks[0]))
        try:
            return original(*args, **kwargs)
        finally:
            marks[0] = perf_counter_ns()
            loop.add("backward", marks[0] - start_ns)

    return backward


def _begin_update(_optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """Note the begin of an update, and return its arguments with a closure that is timed."""
    loop = _find_loop()
    if loop is None:
        return None
    _marks.setdefault(loop, [0, 0])[1] = perf_counter_ns()
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _time_closure(loop, kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _time_closure(loop, args[1]), *args[2:]), kwargs
    return None


def _time_closure(loop: Loop, closure: Any) -> Any:
    """Return the closure of an update, as Lightning's: its time is none of the optimizer's."""
    calls = count()

    def timed(*args: Any, **kwargs: Any) -> Any:
        marks, now_ns = _marks.setdefault(loop, [0, 0]), perf_counter_ns()
        loop.add("optimizer", now_ns - marks[1])
        if next(calls):  # what an update does between two calls is no forward pass
            marks[0] = now_ns
        try:
            return closure(*args, **kwargs)
        finally:
            marks[1] = perf_counter_ns()

    return timed


def _end_update(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    loop = _find_loop()
    marks = None if loop is None else _marks.get(loop)
    if loop is not None and marks is not None and marks[1]:
        now_ns = perf_counter_ns()
        loop.add("optimizer", now_ns - marks[1])
        marks[:] = now_ns, 0


def _note_begin(original: Any) -> Any:
    def begin(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        _made_ns.add(iterator, perf_counter_ns())
        return original(iterator, *args, **kwargs)

    return begin


def _wait_within(loop: Loop, fetch: Any, iterator: Any) -> Any:
    """Fetch from a further loader of a step: it waits for that, too."""
    start_ns = perf_counter_ns()
    try:
        return fetch(iterator)
    finally:
        spent_ns = perf_counter_ns() - start_ns
        loop.wait_within(spent_ns)
        marks = _marks.setdefault(loop, [0, 0])
        marks[0] = max(marks[0], loop.begun_ns) + spent_ns  # that was no forward pass


def _time_fetch(original: Any) -> Any:
    def fetch(iterator: Any) -> Any:
        loop = _passes.get(iterator)
        if loop is None or loop.is_closed:
            outer = innermost_loop()
            if outer is not None and (outer.is_aside or not outer.is_in_step):
                # Another library drives the loop, or the job's code: the fetch is its wait.
                start_ns = perf_counter_ns()
                try:
                    return original(iterator)
                finally:
                    if not outer.is_aside:
                        outer.fetched_ns = (outer.fetched_ns or 0) + perf_counter_ns() - start_ns
            made_ns = _made_ns.get(iterator)
            # Inside a part that the code times itself, that part has the time already.
            is_outside = outer is not None and outer.find_part() is None
            if outer is not None and is_outside and (made_ns or _NEVER) <= outer.begun_ns:
                return _wait_within(outer, original, iterator)
            loop = open_loop("step")
            if loop is None:
                return original(iterator)
            loop.is_automatic = True
            _passes.add(iterator, loop)
            enter(loop)
            weakref.finalize(iterator, _end_pass, loop)
            loop.wait()
        else:
            _name_pass(loop)
            loop.end()
        try:
            item = original(iterator)
        except BaseException:
            _passes.drop(iterator)
            _end_pass(loop)
            raise
        loop.begin()
        return item

    return fetch


def _time_save(original: Any) -> Any:
    timed = aside("checkpoint")(original)

    def save(*args: Any, **kwargs: Any) -> Any:
        loop = _trained.get() if innermost_loop() is None else None
        if loop is None:
            return timed(*args, **kwargs)
        # After a pass, as at the end of an epoch: it belongs to the loop.
        start_ns = perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            loop.add_late("checkpoint", perf_counter_ns() - start_ns)

    return save


def _name_pass(loop: Loop) -> None:
    """Name a loop by what its first step did."""
    if not loop.is_divided and not {"backward", "optimizer"} & loop.parts.keys():
        loop.name = "evaluation"


def _end_pass(loop: Loop) -> None:
    """End a pass over a loader; within a step of another loop it is a part of that."""
    if loop.is_closed:
        return
    _name_pass(loop)
    leave(loop)
    outer = loop.outer
    if loop.name != "evaluation":
        _trained.set(loop)
    elif outer is not None and not (outer.is_closed or outer.is_in_step):
        outer.add("evaluation", loop.length_ns)  # between two steps: it belongs to the next one
