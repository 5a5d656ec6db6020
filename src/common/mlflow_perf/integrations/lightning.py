"""Lightning's training steps: a callback that every new Trainer gets, and that one may pass."""

from __future__ import annotations

import functools
import sys
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.integrations._training_loops import Patches, time_aside
from mlflow_perf.recorders.steps.loop import Loop, enter, leave, open_loop

_patches = Patches()


def follow(module: ModuleType) -> None:
    """Give each Trainer that is made from now on the callback, and time its checkpoints.

    Args:
        module: `lightning.pytorch.trainer.trainer`, or `pytorch_lightning.trainer.trainer`.
    """
    package = module.__name__.removesuffix(".trainer.trainer")

    def add_callback(original: Any) -> Any:
        def initialise(trainer: Any, *args: Any, **kwargs: Any) -> None:
            original(trainer, *args, **kwargs)
            if not any(isinstance(c, _callback_class(package)) for c in trainer.callbacks):
                trainer.callbacks.append(make_callback(package))

        return initialise

    _patches.replace(module.Trainer, "__init__", add_callback)
    _patches.replace(module.Trainer, "save_checkpoint", time_aside("checkpoint"))


def unfollow() -> None:
    """Take everything back; a Trainer that has the callback keeps it."""
    _patches.undo()


def make_callback(package: str = "lightning.pytorch") -> Any:
    """Return a callback for `Trainer(callbacks=[…])` that times steps, input and evaluations.

    Args:
        package: `lightning.pytorch` or `pytorch_lightning`, whichever the Trainer is from.

    Raises:
        MissingDependencyError: When Lightning is not installed.
    """
    return _callback_class(package)()


@functools.cache
def _callback_class(package: str) -> type:
    try:
        __import__(f"{package}.callbacks")
    except ImportError as error:
        raise MissingDependencyError(package.partition(".")[0], "lightning") from error
    base: Any = sys.modules[f"{package}.callbacks"].Callback

    class StepCallback(base):  # type: ignore[misc]  # the base is known when the package is
        """Drives a loop of steps by the hooks of a Trainer."""

        _loop: Loop | None = None
        _evaluation_ns = 0

        def on_train_start(self, *_: Any) -> None:
            self._loop = open_loop("step")
            if self._loop is not None:
                enter(self._loop)
                self._loop.wait()

        def on_train_batch_start(self, *_: Any) -> None:
            if self._loop is not None:
                self._loop.begin()

        def on_train_batch_end(self, *_: Any) -> None:
            if self._loop is not None:
                self._loop.end()

        def on_validation_start(self, *_: Any) -> None:
            self._evaluation_ns = perf_counter_ns()

        def on_validation_end(self, *_: Any) -> None:
            if self._loop is not None:
                self._loop.add("evaluation", perf_counter_ns() - self._evaluation_ns)

        def on_train_end(self, *_: Any) -> None:
            if self._loop is not None:
                leave(self._loop)
                self._loop = None

        on_exception = on_train_end

        def __reduce__(self) -> tuple[Any, ...]:
            return make_callback, (package,)  # ranks that are spawned get one of their own

    return StepCallback
