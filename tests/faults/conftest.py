"""Fixtures of the fault suite: processes, an ill server, and the table of what became of each."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from tests.faults.nursery import Job, Nursery
from tests.faults.proxy import FaultyProxy

Fault = Callable[[str, str, str], None]
"""Notes a line for the table of faults: the fault, what became of the report, the loss."""


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    """Return what adds a row to the table at the end: fault, outcome, data lost."""
    return lambda *row: request.node.user_properties.append(("fault", row))


@dataclass(frozen=True)
class Faults:
    """What a fault test works with.

    Attributes:
        start: Starts a process of `tests.faults.jobs`.
        proxy: The ill server.
        client: Of the server itself.
        state: Folder of the journals.
        how: What ails the server.
    """

    nursery: Nursery
    proxy: FaultyProxy
    client: MlflowClient
    state: Path
    how: str | int = ""

    def start(self, name: str, *args: Any, **options: str) -> Job:
        """Start a process that does one of the jobs."""
        environ = {"MLFLOW_PERF_DIR": str(self.state), "MLFLOW_TRACKING_URI": self.proxy.uri}
        return self.nursery.start(f"tests.faults.jobs:{name}", *args, **{**environ, **options})

    def ill(self, how: str | int, *, from_now: bool = True) -> Faults:
        """Return the same with an ill server and journals of its own.

        Args:
            how: `refuses`, or a fault of the proxy's.
            from_now: Whether it is ill from now on, or when `sicken` is called.
        """
        upstream = self.proxy.upstream.geturl()
        other = replace(self, proxy=FaultyProxy(upstream), state=self.state / str(how), how=how)
        if from_now:
            other.sicken()
        return other

    def sicken(self) -> None:
        """Let the server be ill now."""
        if self.how == "refuses":
            self.proxy.refuse()
        else:
            self.proxy.fault = self.how

    def is_asked_after(self, count: int) -> bool:
        """Return whether the server has had more requests than that."""
        return self.proxy.asked > count

    def recovered(self, job: Job | None = None) -> str:
        """Recover the one journal there is and return its run's id.

        Args:
            job: The `recover` that was started for it, if it was.
        """
        job = job or self.recover(wait=False)
        assert job.wait() == 0, job.output
        (sent,) = json.loads(job.output)
        assert self.journals == []
        return str(sent["run_id"])

    def started(self, name: str, *args: str, **options: str) -> tuple[Job, str]:
        """Start a job and return it with its run's id, once it is busy."""
        job = self.start(name, *args, **options)
        wait_until(lambda: "go\n" in job.output, job)
        return job, job.run_id

    def recover(self, *, wait: bool = True, code: int = 0) -> Job:
        """Run `mlflow-perf recover --json`, to its end where that is waited for.

        Args:
            wait: Whether to wait for its end.
            code: The exit code that it ends with then: 2 where a report stays.
        """
        job = self.start("command", "recover", "--json")
        assert not wait or job.wait() == code, job.output
        return job

    def named(self, name: str, *, deleted: bool = False) -> list[Run]:
        """Return the runs of a name, those that were deleted or the others."""
        from mlflow.entities import ViewType

        kind = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
        return self.client.search_runs(["0"], f"attributes.run_name = '{name}'", kind)

    def run(self, run_id: str) -> Run:
        """Return what MLflow holds of a run."""
        return self.client.get_run(run_id)

    def newest_run(self) -> Run:
        """Return the run that was made last, in whichever experiment."""
        everywhere = [e.experiment_id for e in self.client.search_experiments()]
        return self.client.search_runs(everywhere, max_results=1)[0]

    def has_all(self, run_id: str) -> bool:
        """Tell whether a run has its metrics and its artifacts."""
        files = {file.path for file in self.client.list_artifacts(run_id)}
        metrics = self.run(run_id).data.metrics
        return {"perf", "perf_report.html"} <= files and metrics["duration_sec"] > 0

    @property
    def journals(self) -> list[str]:
        """Names of all that is in the folder of the journals."""
        return sorted(os.listdir(self.state)) if self.state.is_dir() else []


def wait_until(holds: Callable[[], bool], job: Job, *, seconds: float = 60.0) -> None:
    """Return when something holds; fail with the job's output when it never does."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, job.output
        time.sleep(0.02)


@pytest.fixture
def faults(_nursery: Nursery, _server: str, tmp_path: Path) -> Iterator[Faults]:
    """Return the processes, the ill server and the state folder of one test."""
    proxy = FaultyProxy(_server)
    yield Faults(_nursery, proxy, MlflowClient(_server), tmp_path / "state")
    proxy.close()


@pytest.fixture
def memory_cgroup(tmp_path: Path) -> Iterator[Path]:
    """Return a memory cgroup of 200 MB, where this machine lets us make one."""
    root = Path("/sys/fs/cgroup")
    places = [(root / "memory", "memory.limit_in_bytes"), (root, "memory.max")]
    for parent, limit in places:
        folder = parent / f"mlflow-perf-{os.getpid()}-{tmp_path.name[-20:]}"
        try:
            folder.mkdir()
            (folder / limit).write_text(str(200 << 20))
        except OSError:
            continue
        yield folder
        time.sleep(0.2)
        folder.rmdir()
        return
    pytest.skip("no memory cgroup can be made here")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return what mounts a small file system in memory, with options, where we may."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mount-{len(places)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("nothing can be mounted here")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=True)
