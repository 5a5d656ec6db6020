"""A group before its command begins: its journal, its parent run, and taking both back."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from functools import partial

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.settings import Settings
from mlflow_perf.core.starting import RaisingSignals
from mlflow_perf.core.uris import is_http, reason_of
from mlflow_perf.publish.group_journal import create_group_run, open_group_journal
from mlflow_perf.publish.journal import Journal
from mlflow_perf.publish.journal_file import find_state_folder
from mlflow_perf.session.outcome import Outcome
from mlflow_perf.session.run_finder import find_tracking_uri, import_mlflow
from mlflow_perf.tracking import client
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.new_store import (
    is_unmade,
    is_wrong_for_ever,
    making_alone,
    ride_out_races,
)
from mlflow_perf.tracking.recorded_runs import discard_repeated_runs
from mlflow_perf.tracking.reporting_notes import note_apart
from mlflow_perf.tracking.run_handle import Claim, RunHandle

_NEW_STORE_SEC = 60.0
_LOOKS = 5
_TAKE_BACK_SEC = 5.0  # for the answer of a server that is creating a run which nobody needs

_log = get_logger(__name__)


@dataclass
class Group:
    """A group whose journal is open.

    Attributes:
        delivery: Its run, and how it ended.
        journal: Makes or ends the run where this process cannot.
        claim: The permission to create the run.
        unmade: Why there was no run when the command started; empty where there was.
        is_lost: Whether there can never be one: the store's address cannot be used.
        creation: The creation of the run.
        is_creating: Whether that may have changed the store.
        began: Unix and monotonic time at which the run was created, or was to be.
        apart: How many steps reported to another store.
    """

    delivery: Delivery
    journal: Journal
    claim: Claim
    unmade: str = ""
    is_lost: bool = False
    creation: MlflowCall[None] | None = None
    is_creating: bool = False
    began: tuple[float, float] = field(default_factory=lambda: (time.time(), time.monotonic()))
    apart: int = 0

    def begin(self, settings: Settings) -> None:
        """Start the parent run; none without a server."""
        given, uri = dict(os.environ), self.delivery.run.tracking_uri
        for library in ("alembic", "mlflow.store"):
            logging.getLogger(library).setLevel(logging.ERROR)
        try:
            most_sec = max(settings.start_timeout, 0.0 if is_http(uri) else _NEW_STORE_SEC)
            is_imported = import_mlflow(most_sec)
            # A store of this machine may have to be made first; its maker locks it now and then.
            if not any(is_unmade(uri) for _ in range(_LOOKS)):
                most_sec = settings.start_timeout
            self.creation = MlflowCall(self._create_run, name="new-group")
            self.creation.result(most_sec if is_imported else 0.0)
        # The edge to MLflow: the command runs whatever the server does.
        except Exception as error:  # noqa: BLE001
            self.claim.withdraw()
            if self.delivery.run.run_id is None:
                self.unmade, self.is_lost = reason_of(error), is_wrong_for_ever(error, uri)
                _log.warning("The command runs without a group: %s", self.unmade)
        if self.delivery.run.run_id is not None:
            self.journal.note_run()
        # MLflow's import adds variables of its own, as for its telemetry.
        os.environ.clear()
        os.environ.update(given)

    def _create_run(self) -> None:
        """Create the parent run, unless it is not wanted any more."""
        run, claim, uri = self.delivery.run, self.claim, self.delivery.run.tracking_uri

        def is_wanted() -> bool:
            self.is_creating = True  # first: `take_back` withdraws the claim, and then looks
            return claim.is_open

        # A new store of this machine must not be left half made.
        if not (is_http(uri) or is_wanted()):
            return
        with making_alone(uri, timeout_sec=_NEW_STORE_SEC):
            # Another process that makes it may be none of ours.
            place = ride_out_races(lambda: client.find_current_experiment(uri), uri)
            run.experiment_id = place
        if not is_wanted():
            return
        asked = time.monotonic()
        made = create_group_run(self.delivery, experiment_id=place).info
        if not claim.adopt(made.run_id, own=True, experiment_id=place):
            client.discard_run(made.run_id, tracking_uri=uri)
            return
        self.began = (made.start_time / 1000, time.monotonic())
        discard_repeated_runs(run, made.run_id, asked=asked)
        if run.parent_id and not client.has_parent(run.parent_id, tracking_uri=uri):
            note_apart(made.run_id)

    def take_back(self, by: str, signals: RaisingSignals) -> None:
        """Leave nothing of the group; what cannot be deleted, `recover` ends.

        A second signal ends the wait for the store.

        Args:
            by: The signal that ended the group.
            signals: What lets the second one raise.
        """
        self.claim.withdraw()
        run, creation = self.delivery.run, self.creation
        if run.run_id is None and (creation is None or not self.is_creating):
            self.journal.remove()
            return
        # The answer of a server may be lost, and this process be killed meanwhile.
        why = f"{by} ended it before its command began"
        self.note_end(Outcome("KILLED", f"signal {by}"), unsent=why)
        most_sec = _TAKE_BACK_SEC if is_http(run.tracking_uri) else _NEW_STORE_SEC
        until, is_gone = time.monotonic() + most_sec, False
        try:
            signals.allow_another()
            if creation is not None:
                with contextlib.suppress(Exception):  # whatever MLflow raises: there may be a run
                    creation.result(most_sec)
                    is_gone = run.run_id is None
            if (run_id := run.run_id) is not None:
                discard = partial(client.discard_run, run_id, tracking_uri=run.tracking_uri)
                discarding = MlflowCall(discard, name="no-group", workspace=run.workspace)
                discarding.result(until - time.monotonic())
                is_gone = True
        # The edge to MLflow, as above.
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
            _log.debug("The run cannot be deleted: %s", reason_of(error))
        if is_gone:
            self.journal.remove()
        else:
            self.journal.keep(self.delivery, unsent=why)

    def let_recover_make_run(self) -> None:
        """Note that the command begins without a run."""
        run = self.delivery.run
        run.started = self.began[0]
        run.experiment_id, run.experiment_name = client.read_chosen_experiment()
        self.journal.note_run()

    def note_end(self, end: Outcome, unsent: str = "") -> float:
        """Put how the group ended into its journal, and return when it did in Unix time.

        Args:
            end: How it ended.
            unsent: Why its report was not sent, once that is known.
        """
        document = self.delivery.document
        # The machine's clock may have been set back meanwhile.
        started, began = self.began
        document.status, document.duration_sec = end.status, time.monotonic() - began
        document.extra |= {"cause": end.cause} if end.cause else {}
        self.journal.secure(self.delivery, unsent=unsent)
        return started + document.duration_sec


def open_group(name: str, settings: Settings) -> Group:
    """Open the journal of a group, which has no run yet."""
    run = RunHandle(tracking_uri=find_tracking_uri())
    delivery, journal = open_group_journal(name, run, find_state_folder(settings.dir))
    return Group(delivery, journal, run.claim())
