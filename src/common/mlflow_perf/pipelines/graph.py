"""The graph of a pipeline as plain records, independent of the library that described it.

Nested pipelines are flattened and the pipeline's inputs are inserted, so that each `Ref` names an
output of a step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.core.settings import Settings
from mlflow_perf.errors import SettingError

PATH_TYPES = frozenset(
    {"uri_file", "uri_folder", "mltable", "mlflow_model", "custom_model", "triton_model"}
)
"""Types of inputs and outputs that are files or folders."""

COMPONENT_TAG = "mlflow_perf.step_component"
"""Tag of a step's run: the component that the pipeline names."""

ARTIFACTS = "artifacts"
"""Output that each step has without writing it: what holds its `./outputs` and `./logs`."""

Literal = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Ref:
    """An output of a step, as the source of a value.

    Attributes:
        step: Name of the step in the flat graph.
        output: Name of its output.
    """

    step: str
    output: str


@dataclass(frozen=True, slots=True)
class Parts:
    """A text that is joined from literals and references: an embedded binding."""

    items: tuple[Literal | Ref, ...]


Value = Literal | Path | Ref | Parts | None
"""The value of an input; a path is local; None for an optional input that is not given."""


@dataclass(frozen=True, slots=True)
class Port:
    """The declaration of an input or output of a component.

    Attributes:
        name: Name of the input or output.
        type: `string`, `integer`, `number`, `boolean`, or one of `PATH_TYPES`; empty if the
            pipeline declares none, which takes any value and any path.
        optional: Whether an input can be omitted.
        default: Value of an input that is not given.
        minimum: Smallest value of a number.
        maximum: Largest value of a number.
        enum: The allowed values; empty if all are allowed.
    """

    name: str
    type: str
    optional: bool = False
    default: Literal | None = None
    minimum: float | None = None
    maximum: float | None = None
    enum: tuple[Literal, ...] = ()

    @property
    def is_path(self) -> bool:
        """Whether the value is a file or a folder."""
        return self.type in PATH_TYPES


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The environment that a component asks for.

    Attributes:
        name: Its name for people: a file, a docker image or a registered environment.
        python: Version of Python; empty for any.
        requirements: Lines of a pip requirements file; empty if only an image is named.
        left_out: Conda packages that pip does not have.
        image: Docker image or registered environment, which is not used.
        folder: Folder at which relative paths in the requirements start.
    """

    name: str
    python: str = ""
    requirements: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    image: str = ""
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One command of the flat graph.

    Attributes:
        name: Name in the graph, with the nested pipelines' names before it: `prepare.clean`.
        component: Name of the component.
        command: The shell command with `${{inputs.x}}`, `${{outputs.x}}` and `$[[…]]` in it.
        code: Folder of the code, or a single file; None if the command needs none.
        includes: Files and folders that `additional_includes` copies beside the code.
        inputs: The component's inputs by name.
        outputs: The component's outputs by name.
        values: The value of each input, by name.
        environment: Environment variables of the component, overridden by the node's.
        instances: Number of nodes.
        processes: Ranks per node.
        servers: How many of the nodes are parameter servers of TensorFlow.
        distribution: `mpi`, `pytorch` or `tensorflow`; None for a single process.
        timeout_sec: Time limit of an attempt.
        retries: How often a failed attempt is repeated.
        wanted: The environment that the component asks for; None if it names none.
    """

    name: str
    component: str
    command: str
    code: Path | None
    includes: tuple[Path, ...] = ()
    inputs: dict[str, Port] = field(default_factory=dict)
    outputs: dict[str, Port] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    instances: int = 1
    processes: int = 1
    servers: int = 0
    distribution: str | None = None
    timeout_sec: float | None = None
    retries: int = 0
    wanted: EnvironmentSpec | None = None

    @property
    def ranks(self) -> int:
        """Number of processes of the whole step."""
        return self.instances * self.processes

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the steps whose outputs this one takes, sorted."""
        found = set()
        for value in self.values.values():
            items = value.items if isinstance(value, Parts) else (value,)
            found |= {item.step for item in items if isinstance(item, Ref)}
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole pipeline.

    Attributes:
        name: Name of the pipeline.
        title: Name for people.
        experiment: MLflow experiment to log to; empty for that of the environment, else one with
            the pipeline's name.
        description: One sentence.
        steps: Steps by name, each after those it needs.
        inputs: Values of the pipeline's own inputs, by name (`group.member` within a group).
        outputs: Sources of the pipeline's outputs, by name.
        source: File that defines it.
        tags: Tags of the pipeline.
    """

    name: str
    title: str
    experiment: str
    steps: dict[str, Step]
    description: str = ""
    inputs: dict[str, Literal | Path | None] = field(default_factory=dict)
    outputs: dict[str, Ref] = field(default_factory=dict)
    source: Path | None = None
    tags: dict[str, str] = field(default_factory=dict)

    def make_tags(self, step: Step) -> dict[str, str]:
        """Return the tags of a step's run.

        A block in the step gives the run the name of its own component.
        """
        return {
            "mlflow_perf.component": step.component,
            COMPONENT_TAG: step.component,
            "mlflow_perf.step": step.name,
            "mlflow_perf.depends_on": ",".join(step.needs),
            "mlflow_perf.instances": str(step.instances),
            "mlflow.source.name": str(self.source or self.name),
        }


def check_settings(graphs: Iterable[Graph]) -> None:
    """Check the settings of mlflow-perf in this environment, and the variables of the steps.

    Raises:
        SettingError: One has a value that no step could be measured with, or started.
    """
    Settings.load()
    for step in (step for graph in graphs for step in graph.steps.values()):
        for name, value in step.environment.items():
            if not name or "=" in name or "\0" in name + value:
                raise SettingError(
                    f"Step {step.name!r}: no program can be given the environment variable "
                    f"{name!r}: its name must be a text without =, and no NUL may be in it."
                )
        try:
            Settings.load({**os.environ, **step.environment})
        except SettingError as error:
            raise SettingError(f"Step {step.name!r}: {error}") from None
