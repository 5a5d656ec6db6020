"""Steps of transformers' Trainer: every one is followed, or the one that gets the callback."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.integrations._training_loops import (
    Aside,
    LoopDrivers,
    Patches,
    callback_class,
    time_aside,
)

__all__ = ["follow", "make_callback", "unfollow"]

EVENTS = {
    "on_train_begin": "start",
    "on_step_begin": "begin",
    "on_step_end": "end",
    "on_train_end": "stop",
}
"""Event of a Trainer → method of `LoopDriver`."""

_patches = Patches()
_drivers = LoopDrivers()


def follow(module: ModuleType) -> None:
    """Follow each Trainer of this process, also one that trains already.

    Args:
        module: `transformers.trainer`.
    """

    def drive_by_events(original: Any) -> Any:
        def call_event(handler: Any, event: str, *args: Any, **kwargs: Any) -> Any:
            if not any(type(callback).__name__ == "StepCallback" for callback in handler.callbacks):
                _drivers.drive(handler, EVENTS.get(event))
            if event != "on_log":
                return original(handler, event, *args, **kwargs)
            with Aside("logging"):
                return original(handler, event, *args, **kwargs)

        return call_event

    _patches.replace(module.CallbackHandler, "call_event", drive_by_events)
    _patches.replace(module.Trainer, "evaluate", time_aside("evaluation"))
    _patches.replace(module.Trainer, "_save_checkpoint", time_aside("checkpoint"))


def unfollow() -> None:
    """Take everything back."""
    _patches.undo()


def make_callback() -> Any:
    """Return a callback for `Trainer(callbacks=[…])` that times steps and the wait for batches.

    Raises:
        MissingDependencyError: When transformers is not installed.
    """
    return _make_class()()


@functools.cache
def _make_class() -> type:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise MissingDependencyError("transformers", "transformers") from error
    return callback_class(TrainerCallback, EVENTS, make_callback)
