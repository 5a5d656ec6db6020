"""The recording of one MLflow run: a window of the process's sampler, and its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow_perf.core.json_io import round_columns
from mlflow_perf.core.own_cost import brought_bytes
from mlflow_perf.core.settings import Settings
from mlflow_perf.core.uris import absolute_store
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.node.exit_cause import read_oom_counts
from mlflow_perf.node.place import Node
from mlflow_perf.publish.delivery_queue import LateJournal, Sending
from mlflow_perf.publish.final_document import make_final_document
from mlflow_perf.publish.journal import Journal
from mlflow_perf.publish.journal_facts import JournalFacts
from mlflow_perf.publish.live_curves import LiveCurves
from mlflow_perf.recorders import current
from mlflow_perf.recorders.collect import collect_steps
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.operations.difference import subtract
from mlflow_perf.recorders.steps.metrics import StepMetrics
from mlflow_perf.records import MB
from mlflow_perf.sampling.windows import Window, WindowSampler
from mlflow_perf.session.address import address
from mlflow_perf.session.outcome import Outcome
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.run_events import StartedRun
from mlflow_perf.tracking.run_handle import RunHandle

# The runs that are over before their first sample need no journal: it takes most of a millisecond.
_SOON_SEC = 1.0
_BRIEF_SEC = 1.0


class RunRecording:
    """Records one run from its start to its end, beside any number of others.

    Args:
        run: The run, as it was started in MLflow.
        name: The component.
        node: This process's place in its job.
        node_facts: What a document says of it.
        settings: The settings.
        sampler: The process's sampler.
        window: The run's span so far.
        state_folder: Folder of the journals.
        spool_folder: Where the processes of the job write their operations; None without one.
        operations: Where this process records operations.
        read_operations: Returns a copy of all operations of the job so far.

    Attributes:
        started: The run.
        run: The handle of the run, as of any recording.
        is_active: Whether `start_run` started it, so that MLflow ends it at the interpreter's end.
        overlapping: How many other runs of this process ran at the same time, less those above
            and below this one.
        block: The `report()` block of this process whose run is the parent of this one.
        is_late: Whether it was logged after its work, and has the span of its parent.
        is_open: Whether the last reading is still to come.
        is_discarded: Whether there is no report.
        measured_by: The run of this process, or of one above, whose figures contain those of this
            one.
        state_folder: Folder of the journals.
    """

    def __init__(
        self,
        run: StartedRun,
        *,
        name: str,
        node: Node,
        node_facts: dict[str, Any],
        settings: Settings,
        sampler: WindowSampler,
        window: Window,
        state_folder: Path,
        spool_folder: Path | None,
        operations: OperationMetrics,
        read_operations: Callable[[], OperationMetrics],
    ) -> None:
        self.started, self.name, self.node = run, name, node
        self.run = RunHandle(
            absolute_store(run.tracking_uri),
            run_name=run.name,
            run_id=run.run_id,
            experiment_id=run.experiment_id,
            workspace=run.workspace,
            artifact_uri=run.artifact_uri,
        )
        self.window = window
        self._node_facts = node_facts
        self.operations = operations
        self.is_active = not run.is_new
        self.overlapping = 0
        self.block: object = None
        self.is_late, self.is_open, self.is_discarded = False, True, False
        self.measured_by: str | None = None
        self._settings, self._sampler = settings, sampler
        self.state_folder, self._spool_folder = state_folder, spool_folder
        self._read_operations = read_operations
        self._operations_before = read_operations()
        self._operations_after: OperationMetrics | None = None
        self._outcome = Outcome("KILLED")
        self._journal = LateJournal(self._open_journal)
        self._live: LiveCurves | None = None
        self.steps = StepMetrics()
        self._step_source = current.process.steps
        if self._step_source is not None:
            self._step_source.feed(self.steps)
        if settings.interval > _SOON_SEC:
            self._begin_journal()
        window.on_row = self._take_row

    def _take_row(self, row: dict[str, float]) -> None:
        """Write into the journal and the live curves; those of a short run are never begun."""
        if self._journal.journal is None:
            self._begin_journal()
        else:
            self._journal.journal.append(row)
        if self._settings.live:
            if self._live is None:
                self._live = LiveCurves.begin(self.run, component=self.name)
            self._live(row)

    def _begin_journal(self) -> None:
        journal, rows = self._journal.open(), self.window.rows()
        for row in rows:
            journal.append(row)
        journal.start()
        if len(rows) > 1:  # by itself the first one says nothing
            journal.flush()

    def _open_journal(self) -> Journal:
        document = NodeDocument(node=self._node_facts, component=self.name, status="KILLED")
        if self.measured_by is not None:  # what kills this run will kill that one too
            document.extra["measured_by"] = self.measured_by
        folder = self._spool_folder if self._operations_before.is_empty() else None
        facts = JournalFacts(
            started=self.window.started,
            counters=self._sampler.counters,
            facts=self._list_facts(),
            oom_kills=read_oom_counts(),
            spool=None if folder is None else folder.name,
        )
        return Journal(
            self._address(document),
            facts,
            folder=self.state_folder,
            snapshot=self.window.snapshot,
            max_rows=self._settings.max_length,
        )

    def _list_facts(self) -> dict[str, float]:
        price = self._settings.node_price
        facts = {"node_count": float(self.node.count), "perf_mem_mb": brought_bytes() / MB}
        return facts if price is None else {**facts, "node_price": price}

    def _address(self, document: NodeDocument) -> Delivery:
        return address(document, self.run, name=self.name, node=self.node, settings=self._settings)

    def close(self, outcome: Outcome) -> None:
        """Take the last reading; a second call changes nothing."""
        if self._operations_after is None:
            self._sampler.close(self.window)
            self.is_open = False
            self._operations_after = self._read_operations()
            if self._step_source is not None:
                self._step_source.stop_feeding(self.steps)
            if self._operations_before.is_empty():
                collect_steps(self._spool_folder, self.steps)  # of the other processes
            self._outcome = outcome
            if self._live is not None:
                self._live.close()

    def discard(self) -> None:
        """End without a report, and without a reading: a mock of the job's would see it."""
        self.is_open, self.is_discarded = False, True
        self._sampler.drop(self.window)
        if self._step_source is not None:
            self._step_source.stop_feeding(self.steps)
        if self._live is not None:
            self._live.close()
        self._journal.remove()

    @property
    def run_id(self) -> str | None:
        """Id of the run."""
        return self.run.run_id

    @property
    def is_short(self) -> bool:
        """Whether the run took less than a second."""
        return (self.window.summary.duration() or 0.0) < _BRIEF_SEC

    def send(
        self,
        *,
        brief: bool,
        has_page: Callable[[str, float], bool],
        on_sent: Callable[[Delivery], object],
    ) -> Sending:
        """Return the report of the closed recording, for the queue.

        Args:
            brief: Whether the run gets its figures and document alone.
            has_page: Returns whether the server of a store has our page; also takes the moment on
                the monotonic clock until which the report has to be sent.
            on_sent: Called once MLflow has it.
        """

        def make(until: float) -> Delivery:
            if not brief:
                self.run.has_page |= has_page(self.run.tracking_uri, until)
            delivery = self.make_delivery(self._outcome)
            delivery.is_brief = brief
            return delivery

        return Sending(make, self._journal, on_sent)

    def report_now(self, outcome: Outcome) -> Sending:
        """Return the report so far; the recording goes on, and its end sends the report again."""
        return Sending(
            lambda _: self.make_delivery(outcome), LateJournal(self._open_journal), lambda _: None
        )

    def make_delivery(self, outcome: Outcome) -> Delivery:
        """Return the report of the run so far."""
        window, after = self.window, self._operations_after or self._read_operations()
        for name, value in self._list_facts().items():
            window.summary.set_fact(name, value)
        document = make_final_document(
            node=self._node_facts,
            component=self.name,
            status=outcome.status,
            cause=outcome.cause,
            started=window.started,
            summary=window.metrics(),
            reports=round_columns(window.columns()),
            steps=self.steps,
            operations=subtract(after, self._operations_before),
            overlapping_runs=self.overlapping,
            measured_by=self.measured_by,
            of_parent=self.is_late,
        )
        return self._address(document)
