"""The curves of a running job, sent to MLflow as its own `system/…` metrics.

They are sent in a thread of their own: a slow or dead server costs curves, never the sampler's pace
or the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mlflow_perf.core.originals import time
from mlflow_perf.core.own_cost import as_own, bring
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Event, Thread
from mlflow_perf.core.uris import first_line
from mlflow_perf.core.workspaces import working_in
from mlflow_perf.model.columns import SYSTEM_KEYS
from mlflow_perf.tracking.client import open_client
from mlflow_perf.tracking.perf_run import TAG
from mlflow_perf.tracking.run_handle import RunHandle

if TYPE_CHECKING:
    from mlflow.entities import Metric

_SEND_EVERY_SEC = 5.0
_MAX_WAITING = 2000  # rows that wait for the server; older ones are dropped
_MAX_METRICS = 1000  # per request
_ROWS_PER_REQUEST = 100
_CLOSE_SEC = 2.0

_log = get_logger(__name__)

Send = Callable[[str, "list[Metric]"], object]
"""Takes a run id and metrics."""


class LiveCurves:
    """Sends the curves of a recording every few seconds, in batches.

    Args:
        run: The run; while it does not exist yet, the curves wait.
        node: Name of the node in the keys; empty for a job of one node.
        component: The component, which the run's tag names from the first batch on, so that the
            page `/perf` lists a run that is still going; None to leave the tag to the end.
        send: Takes a batch; default: MLflow's `log_batch`.
    """

    def __init__(
        self,
        run: RunHandle,
        *,
        node: str = "",
        component: str | None = None,
        send: Send | None = None,
    ) -> None:
        self._run = run
        self._component = component
        self._send = send or self._log_batch
        self._prefix = f"system/{node}/" if node else "system/"
        self._waiting: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_MAX_WAITING)
        self._step = 0
        self._failed = False
        self._ended = Event()
        self._thread = Thread(self._send_until_closed, name="mlflow-perf-live")

    @bring()
    def _log_batch(self, run_id: str, metrics: list[Metric]) -> None:
        client, key = open_client(self._run.tracking_uri), f"{TAG}component"
        with working_in(self._run.workspace):
            client.log_batch(run_id, metrics=metrics)
            if self._component is not None:
                # The tag names the first component that reported to the run; it is written once.
                if key not in client.get_run(run_id).data.tags:
                    client.set_tag(run_id, key, self._component)
                self._component = None

    @classmethod
    def begin(cls, run: RunHandle, *, node: str = "", component: str | None = None) -> LiveCurves:
        """Return curves that are being sent, see the class."""
        live = cls(run, node=node, component=component)
        live.start()
        return live

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def __call__(self, report: Mapping[str, float]) -> None:
        """Take one report; never blocks."""
        self._waiting.append((self._step, report))
        self._step += 1

    @as_own()
    def _send_until_closed(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(_SEND_EVERY_SEC)
            try:
                self.flush()
            # The edge to MLflow: the curves wait, and one warning says so.
            except Exception as error:  # noqa: BLE001
                if not self._failed:
                    self._failed = True
                    _log.warning("The live curves cannot be sent now: %s", first_line(error))

    def flush(self) -> None:
        """Send the reports that wait.

        Raises:
            Exception: Whatever the store raises. Reports that were not sent wait for the next time.
        """
        from mlflow.entities import Metric

        run_id = self._run.run_id
        while run_id is not None and self._waiting:
            count = min(_ROWS_PER_REQUEST, len(self._waiting))
            rows = [self._waiting.popleft() for _ in range(count)]
            now = time.time()
            metrics = [
                Metric(self._prefix + key, row[column], int(1000 * row.get("timestamp", now)), step)
                for step, row in rows
                for column, key in SYSTEM_KEYS.items()
                if column in row
            ]
            try:
                self._send(run_id, metrics[:_MAX_METRICS])
            except Exception:
                # On a full queue `extendleft` would drop the newest rows for the oldest.
                room = _MAX_WAITING - len(self._waiting)
                self._waiting.extendleft(reversed(rows[max(0, len(rows) - room) :]))
                raise

    def close(self) -> None:
        """Send the reports that wait and end, within two seconds."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SEC)
