"""Steps of training libraries by themselves: torch, Lightning, transformers, LightGBM, XGBoost.

No library is imported here: each is followed as soon as the job imports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

from mlflow_perf.errors import SettingError
from mlflow_perf.integrations import startup

LIBRARIES = {
    "torch": ("torch",),
    "lightning": ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
    "transformers": ("transformers.trainer",),
    "lightgbm": ("lightgbm.basic",),
    "xgboost": ("xgboost.core",),
}
"""Library → the modules of it whose import its integration waits for. The integration is
`mlflow_perf.integrations.<library>`, with `follow(module)` and `unfollow()`."""

_followed: set[str] = set()


def enable(libraries: Iterable[str] = tuple(LIBRARIES)) -> None:
    """Record the steps of these libraries into the session that there is when they train.

    A library that is imported later is followed then. Without a session nothing is measured.

    Args:
        libraries: Names out of `LIBRARIES`.

    Raises:
        SettingError: If a name is none of them.
    """
    for library in libraries:
        if library not in LIBRARIES:
            known = ", ".join(LIBRARIES)
            raise SettingError(f"{library!r} is no training library: give one of {known}.")

        def follow(module: ModuleType, library: str = library) -> None:
            _followed.add(library)
            import_module(f"mlflow_perf.integrations.{library}").follow(module)

        for name in LIBRARIES[library]:
            startup.call(name, follow)


def disable() -> None:
    """Restore all libraries to their state before `enable`."""
    for names in LIBRARIES.values():
        for name in names:
            startup.forget(name)
    while _followed:
        import_module(f"mlflow_perf.integrations.{_followed.pop()}").unfollow()
