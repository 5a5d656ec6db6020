"""Judgements on the figures: verdict, right size, comparison, gate, workflow."""

from __future__ import annotations

from types import ModuleType

from mlflow_perf.core.submodules import load_submodule


def __getattr__(name: str) -> ModuleType:
    return load_submodule(__name__, name)
