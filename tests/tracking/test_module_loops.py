"""What looks at all modules, while another thread imports."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from mlflow_perf.core import replaced
from mlflow_perf.tracking import kept_modules, own_random


@pytest.fixture
def _importing_at_each_collection() -> Iterator[None]:
    """Add a module whenever Python collects garbage, which lets other threads run."""
    names: list[str] = []

    def add(phase: str, _: object) -> None:
        if phase == "start":
            names.append(f"test_module_loops_{len(names)}")
            sys.modules[names[-1]] = ModuleType(names[-1])

    threshold = gc.get_threshold()
    gc.callbacks.append(add)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(add)
        for name in names:
            del sys.modules[name]


@pytest.mark.parametrize(
    "look", [kept_modules.keep_brought, own_random.separate_loaded, replaced.find_hidden]
)
@pytest.mark.usefixtures("_importing_at_each_collection")
def test_an_import_meanwhile_disturbs_no_look(
    look: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended a call of MLflow: dictionary changed size during iteration."""
    monkeypatch.setattr(kept_modules, "_modules", 0)
    monkeypatch.setattr(own_random, "_modules", 0)
    look()
