"""Lightning's training steps: every Trainer is followed, or the one that gets the callback."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.integrations._training_loops import (
    LoopDrivers,
    Patches,
    callback_class,
    time_aside,
)

__all__ = ["follow", "make_callback", "unfollow"]

EVENTS = {
    "on_train_start": "start",
    "on_train_batch_start": "begin",
    "on_train_batch_end": "end",
    "on_validation_start": "begin_evaluation",
    "on_validation_end": "end_evaluation",
    "on_train_end": "stop",
    "on_exception": "stop",
}
"""Hook of a Trainer → method of `LoopDriver`."""

_patches = Patches()
_drivers = LoopDrivers()


def follow(module: ModuleType) -> None:
    """Follow each Trainer of this process, also one that trains already.

    Args:
        module: `lightning.pytorch.trainer.trainer`, or `pytorch_lightning.trainer.trainer`.
    """
    package = module.__name__.removesuffix(".trainer.trainer")

    def drive_by_hooks(original: Any) -> Any:
        def call_hooks(trainer: Any, hook_name: str, *args: Any, **kwargs: Any) -> Any:
            if not any(type(callback).__name__ == "StepCallback" for callback in trainer.callbacks):
                _drivers.drive(trainer, EVENTS.get(hook_name))
            return original(trainer, hook_name, *args, **kwargs)

        return call_hooks

    _patches.replace(sys.modules[f"{package}.trainer.call"], "_call_callback_hooks", drive_by_hooks)
    _patches.replace(module.Trainer, "save_checkpoint", time_aside("checkpoint"))
    connectors = sys.modules.get(f"{package}.trainer.connectors.logger_connector.logger_connector")
    connector = getattr(connectors, "_LoggerConnector", None)
    if connector is not None:
        _patches.replace(connector, "log_metrics", time_aside("logging"))


def unfollow() -> None:
    """Take everything back."""
    _patches.undo()


def make_callback(package: str = "lightning.pytorch") -> Any:
    """Return a callback for `Trainer(callbacks=[…])` that times steps, input and evaluations.

    Args:
        package: `lightning.pytorch` or `pytorch_lightning`, whichever the Trainer is from.

    Raises:
        MissingDependencyError: When Lightning is not installed.
    """
    return _make_class(package)()


@functools.cache
def _make_class(package: str) -> type:
    try:
        __import__(f"{package}.callbacks")
    except ImportError as error:
        raise MissingDependencyError(package.partition(".")[0], "lightning") from error
    base = sys.modules[f"{package}.callbacks"].Callback
    return callback_class(base, EVENTS, make_callback, package)
