"""The errors that mlflow-perf raises on purpose: one small tree, each message a full sentence.

Imports nothing of ours. Every class is also a `ValueError`, `RuntimeError` or `OSError`, so that
code which knows nothing of us still catches it under the usual name.
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
    """Whatever mlflow-perf raises on purpose."""

    def __str__(self) -> str:
        """Return the message on one line, whatever it quotes of a hostile file."""
        return _one_line(super().__str__())


class SettingError(MlflowPerfError, ValueError):
    """An argument, an option or an environment variable has a value that cannot be used."""


class RunNotFoundError(MlflowPerfError, ValueError):
    """The MLflow run that was asked for does not exist, or holds no performance data."""


class DocumentError(MlflowPerfError, ValueError):
    """A performance document cannot be read: not JSON, not ours, or of a later schema."""


class NotUploadedError(MlflowPerfError, RuntimeError):
    """A run has the figures of a report and not its artifacts: their store does not take them."""


class SourceUnavailableError(MlflowPerfError, RuntimeError):
    """A reader's source does not exist on this machine, or may not be read."""


class SpansError(MlflowPerfError, ValueError):
    """A spans database, a log or a query cannot be used."""


class PipelineError(MlflowPerfError, ValueError):
    """A pipeline file, its graph, an input or a setting cannot be run."""


class StepFailedError(MlflowPerfError, RuntimeError):
    """A step of a pipeline ended with an error.

    Attributes:
        step: Name of the step in the graph.
    """

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step

    def __str__(self) -> str:
        """Return a line for each step that failed."""
        return "\n".join(_one_line(line) for line in Exception.__str__(self).split("\n"))


class MissingDependencyError(MlflowPerfError, ImportError):
    """A feature needs a package that is not installed; the message names the extra that has it.

    Attributes:
        extra: The extra of mlflow-perf that brings the package.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"This needs the package {package}, which is not installed: "
            f"pip install 'mlflow-perf[{extra}]'."
        )
        self.extra = extra
