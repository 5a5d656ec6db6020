"""The MLflow runs of a wrapped command: the report joins a single run, or links to several."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.core.json_io import to_json
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import first_line, redact_password
from mlflow_perf.core.workspaces import working_in
from mlflow_perf.session.recording import Recording
from mlflow_perf.tracking.client import open_client
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.perf_run import MEASURED_TAG, TAG
from mlflow_perf.tracking.run_events import StartedRun
from mlflow_perf.tracking.run_handle import RunHandle
from mlflow_perf.tracking.run_notes import (
    NotedRun,
    find_unseeing_python,
    is_reported,
    read_noted_runs,
    read_started_runs,
)

_OWN_RUN_AFTER_SEC = 30.0
_LINK_SEC = 10.0
_MAX_LINKS = 100
_MAX_TAGGED = 1000
_log = get_logger(__name__)


class CommandRuns:
    """Decides which run gets the report of a command.

    If a command starts exactly one run (without counting nested runs), the report goes into that
    run, so that its cost is beside its accuracy. Any other command has a run of its own. The runs
    of `report()` blocks do not count: a small block must not take the command's report.

    Args:
        recording: What records the command.
        folder: Where its processes note their runs; None where they cannot.
        may_join: Whether the report may join a run of the command at all.
    """

    def __init__(self, recording: Recording, folder: Path | None, *, may_join: bool) -> None:
        is_free = recording.run.run_id is None and recording.node.world_size == 1
        self.may_join = may_join and is_free and folder is not None
        self._recording, self._folder = recording, folder
        self._began = time.monotonic()
        self._started: list[StartedRun] = []
        self._noted: list[NotedRun] = []

    def look(self) -> None:
        """Create the run of its own once a command has run for long and started none."""
        if self.may_join and time.monotonic() - self._began > _OWN_RUN_AFTER_SEC:
            self._started = self._list_roots()
            if len(self._started) != 1:
                self._recording.finder.begin_postponed()

    def decide(self) -> bool:
        """Join the command's run if there is exactly one, and return whether a report is wanted.

        No report is wanted if the command itself has reported to that run.
        """
        self._started = self._list_roots()
        self._noted = read_noted_runs(self._folder)  # the report removes the folder
        python = find_unseeing_python(self._folder) if self.may_join and not self._started else None
        if python is not None:
            _log.warning(
                "The command used MLflow with %s, which has no mlflow-perf, so a run that it "
                "started was not noticed and the report has a run of its own. Install mlflow-perf "
                "there too, or give --own-run.", python,
            )  # fmt: skip
        if not self.may_join or len(self._started) != 1:
            return True
        run = self._started[0]
        if is_reported(self._folder, run.run_id):
            return False
        self._recording.join(run)
        return True

    def _list_roots(self) -> list[StartedRun]:
        runs = read_started_runs(self._folder)
        known = {run.run_id for run in runs}
        return [run for run in runs if run.parent_id not in known]

    def link(self, *, is_measured: bool = True) -> None:
        """Tag the run of its own with the runs of the command, and these with the report's run.

        Args:
            is_measured: Whether the command's processes were measured, and not started elsewhere.
        """
        run = self._recording.run
        if run.run_id is None:
            return
        started = [root.run_id for root in self._started]
        started += [one.run_id for one in self._noted if one.own_run]
        started = [run_id for run_id in started if run.own_run]
        inside = [
            one
            for one in self._noted
            # What a process measured as part of another run of its own has that run's tag.
            if one.run_id != run.run_id and one.measured_by is None
            and one.is_of_host(self._recording.node.count)
            and (one.run_id in started or one.is_reported)
        ]  # fmt: skip
        try:
            call = MlflowCall(
                lambda: _tag(run, started, inside if is_measured else []),
                name="link", workspace=run.workspace,
            )  # fmt: skip
            call.result(_LINK_SEC)
        except Exception as error:  # noqa: BLE001 - the report itself was sent
            _log.debug("The runs are not linked: %s", first_line(error))


def _tag(own: RunHandle, started: Sequence[str], inside: Sequence[NotedRun]) -> None:
    own_id = str(own.run_id)
    if started:
        listed = to_json(list(started[:_MAX_LINKS]))
        open_client(own.tracking_uri).set_tag(own_id, f"{TAG}started_runs", listed)
    for run in inside[:_MAX_TAGGED]:
        client = open_client(run.tracking_uri)
        with working_in(run.workspace):
            client.set_tag(run.run_id, MEASURED_TAG, own_id)
            if run.tracking_uri != own.tracking_uri:
                client.set_tag(run.run_id, f"{TAG}measured_at", redact_password(own.tracking_uri))
