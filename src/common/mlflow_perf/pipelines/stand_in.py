"""Stand in for Azure ML's client while a pipeline script runs, and record submitted jobs.

Only this module and `azure` touch azure-ai-ml's client. Calls that only Azure ML can answer are
refused by name.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.azure import REPLACED, find_real, is_job
from mlflow_perf.pipelines.graph import Graph
from mlflow_perf.pipelines.snapshot import CodeState, copy_code, read_state
from mlflow_perf.pipelines.sources import CodeSource, Sources

_ELSEWHERE, _CLOSED = 0, 1


class ScriptEndedError(BaseException):
    """The script has submitted its job and asks for what only Azure ML has: it ends here.

    It is no `Exception`, so that the script's own handlers let it pass.
    """


@dataclass(frozen=True)
class Submission:
    """A job as a script submitted it: the script may change its object, and its code, after that.

    Attributes:
        job: The object.
        answer: What the script got for it.
        found: Its graph, whose steps have copies of their code, or why it cannot be read.
    """

    job: Any
    answer: SimpleNamespace
    found: Graph | Exception

    def read(self) -> Graph:
        """Return the graph.

        Raises:
            PipelineError: The job cannot be run.
        """
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@dataclass
class Record:
    """What a script did with its client.

    Attributes:
        sources: Gets the data and environments that the script creates.
        read: Returns the graph of a job.
        jobs: What it submitted, in order.
        refusals: Calls that only Azure ML can answer, in order.
        outlives_script: Whether the stand-ins stay, for what the script has left behind.
    """

    sources: Sources
    read: Callable[[Any], Graph]
    jobs: list[Submission] = field(default_factory=list)
    refusals: list[PipelineError] = field(default_factory=list)
    components: dict[str, Any] = field(default_factory=dict)
    _copies: dict[tuple[CodeSource, CodeState], Path] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    outlives_script: bool = False
    _process: int = field(default_factory=os.getpid)
    _shared: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 2))  # with forked processes

    @property
    def was_used_elsewhere(self) -> bool:
        """Whether a process that the script forked has submitted a job, which nobody here got."""
        return self._shared[_ELSEWHERE] != 0

    def close(self) -> list[Submission]:
        """Return what was submitted; what comes later is not run."""
        with self._lock:
            self._shared[_CLOSED] = 1
            return self.jobs

    def refuse(self, what: str, way_out: str) -> None:
        """Refuse a call; a script that has submitted its job ends there.

        Raises:
            ScriptEndedError: The script has submitted a job.
            PipelineError: It has not.
        """
        if self.jobs:
            raise ScriptEndedError(what)
        error = PipelineError(f"The script {what}, which only Azure ML has: {way_out}.")
        self.refusals.append(error)
        raise error

    def submit(self, job: Any, **changes: Any) -> SimpleNamespace:
        """Record a job with the settings of the call, and return the answer of the service.

        As there, an object without a name is a new job each time that it is submitted.

        Raises:
            PipelineError: This is another process than that of the script.
            SystemExit: The script has ended: its daemon threads would be no more.
        """
        if os.getpid() != self._process:
            if self._shared[_CLOSED]:
                self.sources.say(
                    "a process that the script started has submitted a job after the script's end: "
                    "it does not run"
                )
            self._shared[_ELSEWHERE] = 1
            raise PipelineError("A job was submitted from a process that the script has started.")
        for name in ("experiment_name", "display_name", "description", "tags"):
            if changes.get(name):
                setattr(job, name, changes[name])
        with self._lock:
            if self._shared[_CLOSED]:
                raise SystemExit
            for known in self.jobs:
                if known.job is job and known.answer.name == job.name:
                    self.sources.say(
                        f"{job.name} is submitted again: it runs once, as it was at first"
                    )
                    return known.answer
            number = len(self.jobs) + 1
            found: Graph | Exception
            try:
                found = self._keep_code(self.read(job), number)
            # The script goes on, as its author expects it; who asks for the graph is told.
            except Exception as error:  # noqa: BLE001 - azure-ai-ml's objects can have any shape
                found = error
            answer = _describe(job, job.name or f"job_{number}")
            self.jobs.append(Submission(job, answer, found))
        return answer

    def _keep_code(self, graph: Graph, number: int) -> Graph:
        """Return a job's graph with copies of its code, as Azure ML uploads it now."""
        steps = dict(graph.steps)
        for source in dict.fromkeys((step.code, step.includes) for step in steps.values()):
            try:
                state = read_state(*source)
                if not state:
                    continue
                if (source, state) not in self._copies:
                    folder = self.sources.make_folder()
                    copy_code(*source, folder)
                    self._copies[source, state] = folder
            except (OSError, PipelineError) as error:
                self.sources.say(f"job {number} will run with its code as it is by then: {error}")
                continue
            for name, step in graph.steps.items():
                if (step.code, step.includes) == source:
                    steps[name] = replace(step, code=self._copies[source, state], includes=())
        return replace(graph, steps=steps)


def _describe(job: Any, name: str) -> SimpleNamespace:
    """Return a submitted job as the service describes it after its end."""
    # A script that polls waits for one of the final states.
    facts: dict[str, Any] = {"name": name, "status": "Completed", "studio_url": ""}
    shared = ("display_name", "experiment_name", "tags", "type", "inputs", "outputs", "jobs")
    facts |= {key: getattr(job, key, None) for key in shared}
    return SimpleNamespace(**facts, id=name, services={}, properties={})


@contextmanager
def standing_in(record: Record) -> Iterator[None]:
    """Let `azure.ai.ml.MLClient` and the credentials of azure-identity be stand-ins in a block.

    The functions that load a YAML file note where it is now: azure-ai-ml resolves the paths in it
    when a job is submitted, from the current folder, which a job has left by the time it is run.
    """
    import azure.ai.ml

    facts = {"_record": record, REPLACED: find_real(azure.ai.ml.MLClient)}
    client = type("MLClient", (_Client,), facts)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(azure.ai.ml, "MLClient", client))
        for name in [n for n in dir(azure.ai.ml) if n.startswith("load_")]:
            load = _loading_from_here(getattr(azure.ai.ml, name))
            stack.enter_context(mock.patch.object(azure.ai.ml, name, load))
        stack.enter_context(mock.patch.object(webbrowser, "open", _open_nothing))
        if importlib.util.find_spec("azure.identity") is not None:
            import azure.identity

            for name in [n for n in dir(azure.identity) if n.endswith("Credential")]:
                real = find_real(getattr(azure.identity, name))
                credential = type(name, (_Credential,), {REPLACED: real})
                stack.enter_context(mock.patch.object(azure.identity, name, credential))
        try:
            yield
        finally:
            if record.outlives_script:
                stack.pop_all()


def _open_nothing(*_: Any, **__: Any) -> bool:
    """Open no page: a mock in its place would keep the script's own blocks from being reported."""
    return False


def _loading_from_here(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loading(source: Any = None, *args: Any, **options: Any) -> Any:
        is_path = isinstance(source, str | os.PathLike)
        return load(str(Path(source).absolute()) if is_path else source, *args, **options)

    return loading


class _Credential:
    def __init__(self, *_: Any, **__: Any) -> None:
        """Take whatever a credential takes."""

    def get_token(self, *_: Any, **__: Any) -> SimpleNamespace:
        """Return a token that opens nothing."""
        return SimpleNamespace(token="none", expires_on=sys.maxsize)  # noqa: S106 - it opens nothing


class _Group:
    """One group of the client's calls, for example `client.data`; an unknown call is refused."""

    def __init__(self, record: Record, name: str, **calls: Any) -> None:
        self._record, self._name = record, name
        self.__dict__.update(calls)

    def list(self, *_: Any, **__: Any) -> list[Any]:
        """Return nothing: the service's own lists are not here."""
        return []

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call.startswith("__"):
            raise AttributeError(call)
        what = f"calls MLClient.{self._name}.{call}"
        return lambda *_a, **_k: self._record.refuse(what, "leave it out, or use --on azureml")


class _Client:
    """What a script gets for `MLClient`."""

    _record: Record

    def __init__(self, *_: Any, registry_name: str | None = None, **facts: Any) -> None:
        record, self._registry = self._record, registry_name
        for name in ("subscription_id", "resource_group_name", "workspace_name"):
            setattr(self, name, facts.get(name) or "local")
        create: dict[str, Callable[..., Any]] = {"create_or_update": self.create_or_update}
        slow: dict[str, Callable[..., Any]] = {
            "begin_create_or_update": self.begin_create_or_update
        }
        self.jobs = _Group(
            record, "jobs", **create,
            get=self._get_job, stream=lambda *_a, **_k: None,
            validate=lambda *_a, **_k: SimpleNamespace(passed=True, error_messages={}),
        )  # fmt: skip
        self.data = _Group(record, "data", **create, get=self._get_data)
        self.components = _Group(record, "components", **create, get=self._get_component)
        self.environments = _Group(record, "environments", **create, get=self._get_environment)
        self.models = _Group(record, "models", **create)
        self.compute = _Group(record, "compute", **create, **slow, get=self._get_compute)
        self.workspaces = _Group(record, "workspaces", get=self._get_workspace, **slow)
        self.datastores = _Group(
            record, "datastores", get_default=self._get_compute, get=self._get_compute
        )

    @classmethod
    def from_config(cls, *args: Any, **facts: Any) -> _Client:
        """Return a client; no `config.json` is needed."""
        return cls(*args, **facts)

    def __getattr__(self, name: str) -> _Group:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Group(self._record, name)

    def create_or_update(self, entity: Any, **changes: Any) -> Any:
        """Note a job, a data asset, an environment or a component that the script creates."""
        kind = type(entity).__name__
        if is_job(entity):
            return self._record.submit(entity, **changes)
        name = getattr(entity, "name", None)
        if getattr(entity, "version", True) is None:
            entity.version = "1"
        if kind == "Data":
            path = Path(getattr(entity, "base_path", None) or ".", str(entity.path))
            place = str(path.resolve()) if path.exists() else str(entity.path)
            self._record.sources.made[str(name)] = place
        elif kind == "Environment":
            self._record.sources.environments[str(name)] = entity
        elif kind.endswith("Component"):
            self._record.components[str(name)] = entity
        return entity

    def begin_create_or_update(self, entity: Any, **changes: Any) -> SimpleNamespace:
        """Return a poller whose result is there at once."""
        made = self.create_or_update(entity, **changes)
        return SimpleNamespace(result=lambda *_: made, wait=lambda *_: None, done=lambda: True)

    def _get_job(self, name: str, *_: Any, **__: Any) -> SimpleNamespace:
        for submitted in self._record.jobs:
            if submitted.answer.name == name:
                return submitted.answer
        raise self._missing(f"asks for the job {name!r}", "run its pipeline here first")

    def _get_data(
        self, name: str, version: str | None = None, label: str | None = None
    ) -> SimpleNamespace:
        made = self._record.sources.made.get(name)
        address = f"azureml:{name}" + (f":{version}" if version else f"@{label or 'latest'}")
        facts = {"name": name, "version": version or "1", "type": "uri_folder"}
        return SimpleNamespace(**facts, id=made or address, path=made or address, tags={})

    def _get_component(self, name: str, version: str | None = None, **_: Any) -> Any:
        if name in self._record.components:
            return self._record.components[name]
        where = f"registry {self._registry}" if self._registry else "workspace"
        asked = f"{name} {version}" if version else name
        raise self._missing(
            f"takes the component {asked} of the {where}", "load it from its component.yaml"
        )

    def _get_environment(self, name: str, version: str | None = None, **_: Any) -> Any:
        from azure.ai.ml.entities import Environment

        made = self._record.sources.environments.get(name)
        return made or Environment(name=name, version=version or "1", image=f"azureml:{name}")

    def _get_compute(self, name: str = "local", **_: Any) -> SimpleNamespace:
        facts = {"type": "amlcompute", "size": "local", "provisioning_state": "Succeeded"}
        return SimpleNamespace(name=name, location="local", **facts, id=name, tags={})

    def _get_workspace(self, name: str = "local", **_: Any) -> SimpleNamespace:
        import mlflow

        facts = {"location": "local", "resource_group": "local", "id": name, "tags": {}}
        return SimpleNamespace(name=name, mlflow_tracking_uri=mlflow.get_tracking_uri(), **facts)

    def _missing(self, what: str, way_out: str) -> PipelineError:
        try:
            self._record.refuse(what, f"{way_out}, or use --on azureml")
        except PipelineError as error:
            return error
        raise AssertionError  # `refuse` always raises
