"""Steps of transformers' Trainer: a callback that every new Trainer gets, or that one may pass."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.integrations._training_loops import Patches, time_aside
from mlflow_perf.recorders.steps.loop import Loop, enter, leave, open_loop

_patches = Patches()


def follow(module: ModuleType) -> None:
    """Give each Trainer the callback, and time its evaluations and checkpoints.

    Args:
        module: `transformers.trainer`.
    """
    _patches.replace(module.Trainer, "evaluate", time_aside("evaluation"))
    _patches.replace(module.Trainer, "_save_checkpoint", time_aside("checkpoint"))

    def add_callback(original: Any) -> Any:
        def initialise(trainer: Any, *args: Any, **kwargs: Any) -> None:
            original(trainer, *args, **kwargs)
            given = trainer.callback_handler.callbacks
            if not any(isinstance(callback, _callback_class()) for callback in given):
                trainer.add_callback(make_callback())

        return initialise

    _patches.replace(module.Trainer, "__init__", add_callback)


def unfollow() -> None:
    """Take everything back; a Trainer that has the callback keeps it."""
    _patches.undo()


def make_callback() -> Any:
    """Return a callback for `Trainer(callbacks=[…])` that times steps and the wait for batches.

    Raises:
        MissingDependencyError: When transformers is not installed.
    """
    return _callback_class()()


@functools.cache
def _callback_class() -> type:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise MissingDependencyError("transformers", "transformers") from error

    class StepCallback(TrainerCallback):  # type: ignore[misc]  # where the package has no types
        """Drives a loop of steps by the events of a Trainer."""

        _loop: Loop | None = None

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.on_train_end()
            self._loop = open_loop("step")
            if self._loop is not None:
                enter(self._loop)
                self._loop.wait()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if self._loop is not None:
                self._loop.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if self._loop is not None:
                self._loop.end()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            if self._loop is not None:
                leave(self._loop)
                self._loop = None

        def __reduce__(self) -> tuple[Any, ...]:
            return make_callback, ()

    return StepCallback
