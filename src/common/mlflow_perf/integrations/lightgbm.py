"""LightGBM's boosting iterations as steps of the loop `boosting`: update and evaluation."""

from __future__ import annotations

from types import ModuleType

from mlflow_perf.integrations._training_loops import BoosterLoops

_boosters = BoosterLoops(("update",), ("eval", "eval_train", "eval_valid"))
unfollow = _boosters.unfollow


def follow(module: ModuleType) -> None:
    """Follow every booster of this process.

    Args:
        module: `lightgbm.basic`.
    """
    _boosters.follow(module.Booster)
