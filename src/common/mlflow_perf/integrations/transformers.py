"""Steps of transformers' Trainer, of every Trainer or of the Trainer that gets the callback."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from mlflow_perf.core.extras import needing
from mlflow_perf.integrations._training_loops import TrainerEvents, aside

__all__ = ["follow", "make_callback", "unfollow"]

_events = TrainerEvents(
    {
        "on_train_begin": "start",
        "on_step_begin": "begin",
        "on_step_end": "end",
        "on_train_end": "stop",
    }
)
_make_class = functools.cache(_events.make_class)
unfollow = _events.undo


def follow(module: ModuleType) -> None:
    """Follow each Trainer of this process, even a Trainer that is already training.

    Args:
        module: `transformers.trainer`.
    """
    _events.follow(module.CallbackHandler, "call_event")
    _divide(module.Trainer)


def _divide(trainer: type) -> None:
    """Time the evaluations and checkpoints of followed Trainers: no event tells their begin."""
    _events.replace(trainer, "evaluate", aside("evaluation"))
    _events.replace(trainer, "_save_checkpoint", aside("checkpoint"))


def make_callback() -> Any:
    """Return a callback for `Trainer(callbacks=[…])` that times steps, input and evaluations.

    Raises:
        MissingDependencyError: When transformers is not installed.
    """
    with needing("transformers", "transformers"):
        from transformers import Trainer, TrainerCallback
    _divide(Trainer)
    return _make_class(TrainerCallback, make_callback)()
