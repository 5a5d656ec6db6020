"""Lightning's training steps, of every Trainer or of the Trainer that gets the callback."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from mlflow_perf.core.extras import needing
from mlflow_perf.integrations._training_loops import TrainerEvents, aside

__all__ = ["follow", "make_callback", "unfollow"]

_events = TrainerEvents(
    {
        "on_train_start": "start",
        "on_train_batch_start": "begin",
        "on_train_batch_end": "end",
        "on_validation_start": "begin_evaluation",
        "on_validation_end": "end_evaluation",
        "on_train_end": "stop",
        "on_exception": "stop",
    }
)
_make_class = functools.cache(_events.make_class)
unfollow = _events.undo


def follow(module: ModuleType) -> None:
    """Follow each Trainer of this process, even a Trainer that is already training.

    Args:
        module: `lightning.pytorch.trainer.trainer`, or `pytorch_lightning.trainer.trainer`.
    """
    package = module.__name__.removesuffix(".trainer.trainer")
    _events.follow(sys.modules[f"{package}.trainer.call"], "_call_callback_hooks")
    _events.replace(module.Trainer, "save_checkpoint", aside("checkpoint"))
    connectors = sys.modules.get(f"{package}.trainer.connectors.logger_connector.logger_connector")
    connector = getattr(connectors, "_LoggerConnector", None)
    if connector is not None:
        _events.replace(connector, "log_metrics", aside("logging"))


def make_callback(package: str = "lightning.pytorch") -> Any:
    """Return a callback for `Trainer(callbacks=[…])` that times steps, input and evaluations.

    Args:
        package: `lightning.pytorch` or `pytorch_lightning`, whichever the Trainer is from.

    Raises:
        MissingDependencyError: When Lightning is not installed.
    """
    with needing(package.partition(".")[0], "lightning"):
        __import__(f"{package}.callbacks")
    base = sys.modules[f"{package}.callbacks"].Callback
    return _make_class(base, make_callback, package)()
