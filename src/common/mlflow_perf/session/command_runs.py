"""The MLflow runs of a wrapped command: the report joins a single run, or links to several."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.core.json_io import to_json
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import first_line, redact_password
from mlflow_perf.session.recording import Recording
from mlflow_perf.tracking.client import open_client
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.run_events import StartedRun
from mlflow_perf.tracking.run_notes import find_unseeing_python, is_reported, read_started_runs

_OWN_RUN_AFTER_SEC = 30.0
_LINK_SEC = 10.0
_MAX_LINKS = 100
_log = get_logger(__name__)


class CommandRuns:
    """Decides which run gets the report of a command.

    If a command starts exactly one run (without counting nested runs), the report goes into that
    run, so that its cost is beside its accuracy. Any other command has a run of its own.

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

    def link(self) -> None:
        """Tag the run of its own with the runs of the command, and these with it."""
        run = self._recording.run
        if not (run.own_run and run.run_id and self._started):
            return
        try:
            call = MlflowCall(
                lambda: _tag(str(run.run_id), run.tracking_uri, self._started), name="link"
            )
            call.result(_LINK_SEC)
        except Exception as error:  # noqa: BLE001 - the report itself was sent
            _log.debug("The runs are not linked: %s", first_line(error))


def _tag(own_id: str, own_uri: str, runs: Sequence[StartedRun]) -> None:
    linked = [run.run_id for run in runs][:_MAX_LINKS]
    open_client(own_uri).set_tag(own_id, "mlflow_perf.started_runs", to_json(linked))
    for run in runs[:_MAX_LINKS]:
        client = open_client(run.tracking_uri)
        client.set_tag(run.run_id, "mlflow_perf.measured_by", own_id)
        if run.tracking_uri != own_uri:
            client.set_tag(run.run_id, "mlflow_perf.measured_at", redact_password(own_uri))
