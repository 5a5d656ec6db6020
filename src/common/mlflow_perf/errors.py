"""The errors that mlflow-perf raises on purpose; each message is a full sentence.

Every class is also a `ValueError`, `RuntimeError` or `ImportError`, so that code that does not know
mlflow-perf catches it by the usual name.
"""

from __future__ import annotations

import re

__all__ = [
    "DocumentError",
    "MissingDependencyError",
    "MlflowPerfError",
    "PipelineError",
    "RunNotFoundError",
    "SettingError",
    "SourceUnavailableError",
    "SpansError",
    "StepFailedError",
]


_LONGEST = 2000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def _one_line(text: str) -> str:
    plain = _CONTROL.sub(" ", text)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"


class MlflowPerfError(Exception):
    """Base class of all errors that mlflow-perf raises on purpose."""

    def __str__(self) -> str:
        """Return the message on one line, even if it quotes a hostile file."""
        return _one_line(super().__str__())


class SettingError(MlflowPerfError, ValueError):
    """An argument, an option or an environment variable has a value that cannot be used."""


class RunNotFoundError(MlflowPerfError, ValueError):
    """The requested MLflow run does not exist or holds no performance data."""


class DocumentError(MlflowPerfError, ValueError):
    """A file is not JSON, not a performance document, or has a later schema."""


class NotUploadedError(MlflowPerfError, RuntimeError):
    """The figures of a run were logged but its artifacts were not: their store refused them."""


class SourceUnavailableError(MlflowPerfError, RuntimeError):
    """A reader's source does not exist on this machine or may not be read."""


class SpansError(MlflowPerfError, ValueError):
    """A spans database, a log or a query cannot be used."""


class PipelineError(MlflowPerfError, ValueError):
    """A pipeline file, its graph, an input or a setting cannot be run."""


class StepFailedError(MlflowPerfError, RuntimeError):
    """A step of a pipeline failed.

    Attributes:
        step: Name of the step in the graph.
    """

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step

    def __str__(self) -> str:
        """Return one line per failed step."""
        return "\n".join(_one_line(line) for line in Exception.__str__(self).split("\n"))


class PipelineStoppedError(StepFailedError):
    """A pipeline was stopped by an interrupt or a signal."""


class MissingDependencyError(MlflowPerfError, ImportError):
    """A feature needs a package that is not installed; the message names the extra to install.

    Attributes:
        extra: The extra of mlflow-perf that installs the package.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"This needs the package {package}, which is not installed: "
            f"pip install 'mlflow-perf[{extra}]'."
        )
        self.extra = extra
