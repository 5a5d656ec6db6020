"""LightGBM's boosting iterations as steps of the loop `boosting`: update and evaluation."""

from __future__ import annotations

from mlflow_perf.integrations._training_loops import BoosterLoops

_boosters = BoosterLoops(("update",), ("eval", "eval_train", "eval_valid"))
follow, unfollow = _boosters.follow, _boosters.undo
