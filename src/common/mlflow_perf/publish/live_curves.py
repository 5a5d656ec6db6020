"""The curves while the job runs, as MLflow's own `system/…` metrics. Imports addresses.

In a thread of its own: a slow or dead server costs curves, never the sampler's pace or the job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mlflow_perf.core.uris import first_line

__all__ = ["SYSTEM_KEYS", "LiveCurves"]

_SEND_EVERY_SEC = 5.0
_MAX_WAITING = 2000  # rows kept while the server is away; older ones are dropped
_MAX_METRICS = 1000
_CLOSE_SEC = 2.0

_log = logging.getLogger(__name__)

SYSTEM_KEYS = {
    "cpu_pct_per_cpu_avg": "cpu_utilization_percentage",
    "mem_percent": "system_memory_usage_percentage",
    "disk_usage_percent": "disk_usage_percentage",
    "net_io_ext_recv_mb": "network_receive_megabytes",
    "net_io_ext_sent_mb": "network_transmit_megabytes",
    "gpu_utilization_pct": "gpu_0_utilization_percentage",
}
"""Column of a report → the key under which MLflow's "System metrics" tab shows it."""

Send = Callable[[str, list[Any]], None]
"""Takes a run id and metrics."""


def _log_batch(tracking_uri: str) -> Send:
    def send(run_id: str, metrics: list[Any]) -> None:
        from mlflow import MlflowClient

        MlflowClient(tracking_uri=tracking_uri).log_batch(run_id, metrics=metrics)

    return send


class LiveCurves:
    """Sends a report's curves every few seconds, in batches.

    Args:
        tracking_uri: The MLflow store.
        run_id: Returns the run, or None while there is none.
        node: Name of the node in the keys; empty for a job of one node.
        send: What takes a batch; for tests.
    """

    def __init__(
        self,
        tracking_uri: str,
        run_id: Callable[[], str | None],
        *,
        node: str = "",
        send: Send | None = None,
    ) -> None:
        self._run_id = run_id
        self._send = send or _log_batch(tracking_uri)
        self._prefix = f"system/{node}/" if node else "system/"
        self._waiting: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=_MAX_WAITING)
        self._step = 0
        self._failed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow-perf-live", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def __call__(self, report: Mapping[str, float]) -> None:
        """Take one report, as `append` does."""
        self.append(report)

    def append(self, report: Mapping[str, float]) -> None:
        """Take one report; never blocks."""
        self._waiting.append((self._step, report))
        self._step += 1

    def _run(self) -> None:
        while not self._ended.wait(_SEND_EVERY_SEC):
            self._try_to_send()
        self._try_to_send()

    def _try_to_send(self) -> None:
        try:
            self.flush()
        # A sink's edge: the curves wait, and one warning says so.
        except Exception as error:  # noqa: BLE001
            if not self._failed:
                self._failed = True
                _log.warning("The live curves cannot be sent now: %s", first_line(error))

    def flush(self) -> None:
        """Send what is waiting.

        Raises:
            Exception: Whatever the store raises; what was not sent waits for the next time.
        """
        run_id = self._run_id()
        while run_id is not None and self._waiting:
            rows = [self._waiting.popleft() for _ in range(min(100, len(self._waiting)))]
            try:
                self._send(run_id, self._metrics(rows))
            except Exception:
                # Of a full queue `extendleft` would drop the newest rows for the oldest.
                room = _MAX_WAITING - len(self._waiting)
                self._waiting.extendleft(reversed(rows[max(0, len(rows) - room) :]))
                raise

    def _metrics(self, rows: list[tuple[int, Mapping[str, float]]]) -> list[Any]:
        from mlflow.entities import Metric

        now = time.time()
        metrics = [
            Metric(self._prefix + key, row[column], int(1000 * row.get("timestamp", now)), step)
            for step, row in rows
            for column, key in SYSTEM_KEYS.items()
            if column in row
        ]
        return metrics[:_MAX_METRICS]

    def close(self) -> None:
        """Send what is waiting and end, within two seconds."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SEC)
