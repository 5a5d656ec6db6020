"""Writes the runs of a pipeline to MLflow: the parent run, a child run per step, and their logs.

Everything goes through `MlflowClient`, never through the active run: steps run in threads, and
MLflow's active run belongs to one thread.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_perf.core.own_cost import as_own
from mlflow_perf.core.uris import (
    absolute_store,
    blocking_file,
    encode_query,
    first_line,
    is_http,
    is_refused,
    redact_password,
    strip_credentials,
)
from mlflow_perf.errors import SettingError
from mlflow_perf.publish.note import Links, renew_note
from mlflow_perf.publish.slots import REPEATED_TAG
from mlflow_perf.publish.step_files import upload_files
from mlflow_perf.publish.step_record import StepRecord, make_run, provide_run
from mlflow_perf.tracking.client import discard_run, end_run, open_client, provide_once, set_tags
from mlflow_perf.tracking.new_store import making_alone, ride_out_races
from mlflow_perf.tracking.page_probe import has_page
from mlflow_perf.tracking.perf_run import TAG
from mlflow_perf.tracking.run_handle import RunHandle
from mlflow_perf.tracking.run_notes import note_reported

if TYPE_CHECKING:
    from mlflow import MlflowClient

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where runs are logged.

    Attributes:
        uri: Tracking URI.
        artifacts: URI of the folder for artifacts of a new experiment; None lets the server choose.
        folder: Folder of an embedded store; None for a server.
    """

    uri: str
    artifacts: str | None = None
    folder: Path | None = None

    def make_default(self) -> None:
        """Make this place the default of everything in this process that uses MLflow."""
        os.environ["MLFLOW_TRACKING_URI"] = self.uri
        mlflow = sys.modules.get("mlflow")
        # A pipeline's script may have chosen a store for itself.
        if mlflow is not None and mlflow.get_tracking_uri() != self.uri:
            mlflow.set_tracking_uri(self.uri)

    def link(self, run_id: str, experiment_id: str) -> str:
        """Return the address of a run's page; for an embedded store, that of `mlflow ui`."""
        query = encode_query(workflowType="machine_learning")
        page = f"#/experiments/{experiment_id}/runs/{run_id}?{query}"
        if is_http(self.uri):
            return f"{strip_credentials(self.uri).rstrip('/')}/{page}"
        return f"http://127.0.0.1:5000/{page}"


def make_embedded_place(folder: Path) -> Place:
    """Return a store in a folder: `mlflow.db` and `artifacts`.

    Raises:
        SettingError: The folder cannot be made or written.
    """
    folder = folder.resolve()
    try:
        (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"The folder {folder} cannot be made: {error.strerror}.") from error
    if not os.access(folder, os.W_OK):
        raise SettingError(f"The folder {folder} cannot be written.")
    return Place(f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri(), folder)


def find_place(to: Path | None, *, environ: Mapping[str, str] = os.environ) -> Place:
    """Return the given folder, else the server of the environment, else `./demo`.

    Raises:
        SettingError: An address was given for a folder, or the folder cannot be made or written.
    """
    if to is not None and _ADDRESS.match(str(to)) and not to.exists():
        # The message does not repeat the address, because it may contain a password.
        raise SettingError(
            "--to takes a folder, not an address: set MLFLOW_TRACKING_URI to the address instead."
        )
    if to is not None:
        return make_embedded_place(to)
    uri = absolute_store(environ.get("MLFLOW_TRACKING_URI", ""))  # each step has its own folder
    return Place(uri) if uri else make_embedded_place(Path("demo"))


@contextmanager
def impatient() -> Iterator[None]:
    """Let MLflow's calls fail within seconds where a server does not answer, not after minutes."""
    patience = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
    added = {key: value for key, value in patience.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)


class Tracking:
    """Runs of one pipeline in one place.

    Args:
        place: Where to log.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._opened: MlflowClient | None = None

    @property
    def _client(self) -> MlflowClient:
        # Not a cached_property: until Python 3.12 all trackings wait for one that hangs.
        if self._opened is None:
            self._opened = open_client(self.place.uri)
        return self._opened

    def experiment(self, name: str) -> str:
        """Return the id of the experiment of that name; it is created if need be.

        Raises:
            SettingError: The tracking server cannot be reached or refuses.
        """
        unusable = f"MLflow at {redact_password(self.place.uri)} cannot be used"
        if is_refused(self.place.uri):
            raise SettingError(f"{unusable}: nothing listens there.")
        if (file := blocking_file(self.place.uri)) is not None:
            raise SettingError(f"{unusable}: {file} is {'a' if file.is_dir() else 'not a'} folder.")

        def provide() -> str:
            found = self._client.get_experiment_by_name(name)
            if found is not None:
                return str(found.experiment_id)
            return str(self._client.create_experiment(name, self.place.artifacts))

        try:
            # Another process may make the same new store, perhaps one without mlflow-perf.
            with impatient(), making_alone(self.place.uri):
                return ride_out_races(lambda: provide_once(provide), self.place.uri)
        # MLflow's own errors, those of a database, and of a driver that is not installed.
        except Exception as error:
            raise SettingError(f"{unusable}: {first_line(error)[:300]}") from error

    @as_own()  # no report of what this process does goes into such a run
    def start(
        self,
        experiment_id: str,
        name: str,
        *,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        params: Mapping[str, object] | None = None,
    ) -> str:
        """Start a run and return its id.

        Args:
            experiment_id: Experiment that holds it.
            name: Name of the run.
            parent: Id of the run that it belongs to.
            tags: Tags.
            params: Parameters; values are cut to the length that every server takes.
        """
        record = StepRecord(experiment_id, name, parent or "", dict(tags or {}), dict(params or {}))
        return make_run(self._client, record)

    def provide(self, step: Path, record: StepRecord) -> str:
        """Return the id of a step's run: see `provide_run`."""
        return provide_run(self._client, step, record)

    def end(
        self,
        run_id: str,
        status: str,
        *,
        tags: Mapping[str, str] | None = None,
        ended: float | None = None,
    ) -> None:
        """Set tags and end a run as `FINISHED`, `FAILED` or `KILLED`, now or at a Unix time."""
        set_tags(self._client, run_id, tags or {})
        end_run(self._client, run_id, status, ended=ended or time.time())

    def discard(self, run_id: str) -> None:
        """Delete a run that came too late for what it was made for."""
        discard_run(run_id, tracking_uri=self.place.uri)

    def has_report(self, run_id: str) -> bool:
        """Return whether the run has a performance report."""
        return f"{TAG}version" in self._client.get_run(run_id).data.tags

    def note_report(self, run_id: str, node_count: int) -> None:
        """Tell a session around this process that it measures what this run's report has, too.

        Args:
            run_id: The run.
            node_count: On how many nodes it was.
        """
        note_reported(RunHandle(absolute_store(self.place.uri), run_id=run_id), node_count)

    def forget_report(self, run_id: str) -> None:
        """Let reports from now on have the place of the present one, which stays beside them."""
        self.untag(run_id, f"{TAG}version")
        self.tag(run_id, REPEATED_TAG, str(time.time()))

    def tag(self, run_id: str, key: str, value: str) -> None:
        """Set a tag of a run."""
        set_tags(self._client, run_id, {key: value})

    def untag(self, run_id: str, key: str) -> None:
        """Delete a tag of a run, if it has it."""
        if key in self._client.get_run(run_id).data.tags:
            self._client.delete_tag(run_id, key)

    def metrics(self, run_id: str, values: Mapping[str, float]) -> None:
        """Log several metrics in one call."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(
            run_id, metrics=[Metric(key, value, now, 0) for key, value in values.items()]
        )

    def note(self, run_id: str, text: Callable[[Links], str]) -> None:
        """Write a run's overview, unless a person has written the present one.

        Args:
            run_id: The run.
            text: Takes the links to the run's reports; returns Markdown.
        """
        run, uri = self._client.get_run(run_id), self.place.uri
        new = renew_note(run, text, tracking_uri=uri, page=has_page(uri))
        for key, value in new.items():
            self._client.set_tag(run_id, key, value)

    def artifacts(self, run_id: str, folder: Path, path: str) -> None:
        """Upload the files of a folder."""
        self._client.log_artifacts(run_id, str(folder), path)

    def upload(self, run_id: str, step: Path) -> None:
        """Upload the files of a step: see `upload_files`."""
        upload_files(self._client, run_id, step)

    def text(self, run_id: str, text: str, path: str) -> None:
        """Upload a text as a file."""
        self._client.log_text(run_id, text, path)
