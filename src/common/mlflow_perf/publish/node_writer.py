"""The only place that writes a node's figures to MLflow. Imports delivery, document and runs.

Everything goes through `MlflowClient` and a run's id: the fluent interface keeps the active run per
thread and would open a second run from ours.
"""

from __future__ import annotations

import logging
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.uris import first_line
from mlflow_perf.errors import DocumentError, NotUploadedError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.publish.note import NOTE_TAG, REPORT_FILE, Links, may_replace, run_note, whole_tags
from mlflow_perf.reports import html
from mlflow_perf.tracking import client as targets
from mlflow_perf.tracking.batches import find_limits, rank_metrics, split_batches
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.load import fetch_file

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["MlflowSink", "node_file"]

_UPLOAD_SEC = 3600.0  # whoever calls us has a deadline of its own
_MAX_LOOKS = 5  # for other nodes that end at the same time
_log = logging.getLogger(__name__)


def node_file(index: int) -> str:
    """Return the file name of a node's document."""
    return f"node-{index}.json"


class MlflowSink:
    """Writes deliveries: one batch of metrics and tags, then the artifacts, then the run's end."""

    def write(self, delivery: Delivery, *, adopt: Callable[[str], bool] | None = None) -> str:
        """Write all of a delivery and return the id of the run that has it.

        Safe to repeat: the same figures and files are written again.

        Args:
            delivery: What to write.
            adopt: Called with the id of a run that had to be made for it; returns whether it is
                still wanted, as it is by default. One that is not is deleted again.

        Raises:
            RunNotFoundError: When the run does not exist (any more).
            TimeoutError: When a run that had to be made is not wanted any more.
            NotUploadedError: When the figures are in the run, which has ended, without artifacts.
            Exception: Whatever MLflow raises when the store does not take it.
        """
        client = targets.client_of(delivery.tracking_uri)
        if delivery.run_id is None:
            made = targets.new_run(
                delivery.run_name or "mlflow-perf",
                tracking_uri=delivery.tracking_uri,
                experiment_id=targets.experiment_of(delivery),
                started=delivery.document.started,
            )
            if adopt is not None and not adopt(made.run_id):
                targets.discard_run(made.run_id, tracking_uri=delivery.tracking_uri)
                raise TimeoutError("the run came after the time for sending")
            delivery.run_id, delivery.own_run = made.run_id, True
            delivery.experiment_id = made.experiment_id
            delivery.document.run_id = made.run_id
        write = self._write_alone if self._is_alone(delivery) else self._write_with_others
        try:
            write(client, delivery)
        except NotUploadedError:
            # Artifacts may never arrive (a credential that nodes do not have): nobody waits then.
            _end_if_own(client, delivery)
            raise
        _end_if_own(client, delivery)
        return delivery.run_id

    def _is_alone(self, delivery: Delivery) -> bool:
        return int(delivery.document.node.get("count", 1)) <= 1 and delivery.index == 0

    def _write_alone(self, client: MlflowClient, delivery: Delivery) -> None:
        mine = PerfDocument({delivery.index: delivery.document})
        # Side by side: against a server far away each request costs its way there and back.
        upload = BackgroundCall(
            lambda: self._upload(client, delivery, mine, page_of=mine), name="perf-upload"
        )
        self._log_figures(client, delivery, mine)
        with _told_as_not_uploaded():
            upload.result(_UPLOAD_SEC)

    def _write_with_others(self, client: MlflowClient, delivery: Delivery) -> None:
        """Write this node's figures, then the whole run's until no other node came meanwhile.

        Nodes end at about the same time: each one puts its document there first and then looks who
        is there, and looks again after it wrote, so that the last look of all has every node.
        """
        mine = PerfDocument({delivery.index: delivery.document})
        try:
            with _told_as_not_uploaded():
                self._upload(client, delivery, mine)
        except NotUploadedError:
            # The whole's would be of this node alone, and write over better ones.
            self._log_figures(client, delivery, mine, of_whole=False)
            raise
        document, seen = mine, -1
        for _ in range(_MAX_LOOKS):
            others = _other_nodes(client, delivery, document)
            document = mine.merge(others)
            if len(document.nodes) == seen:
                break
            seen = len(document.nodes)
            self._log_figures(client, delivery, document)
            self._upload(client, delivery, page_of=document)

    def _log_figures(
        self,
        client: MlflowClient,
        delivery: Delivery,
        document: PerfDocument,
        *,
        of_whole: bool = True,
    ) -> None:
        prefix = delivery.metrics_prefix
        node = rank_metrics(delivery.document.summary, prefix, delivery.index)
        whole = rank_metrics(document.run_summary if of_whole else {}, prefix, 0)
        tags = {**delivery.tags, **whole_tags(document), **self._note(client, delivery, document)}
        for metrics, few in split_batches(node, whole, tags, find_limits(delivery.tracking_uri)):
            client.log_batch(str(delivery.run_id), metrics=metrics, tags=few)

    def _note(
        self, client: MlflowClient, delivery: Delivery, document: PerfDocument
    ) -> dict[str, str]:
        """Return the text for the run's overview, unless a person has written one there."""
        # On a run of ours, too: while a job runs for hours, somebody may describe it.
        run, uri = client.get_run(str(delivery.run_id)), delivery.tracking_uri
        if not may_replace(run.data.tags.get(NOTE_TAG, "")):
            return {}
        experiment_id = str(run.info.experiment_id)
        links = Links(run.info.run_id, experiment_id, tracking_uri=uri, page=delivery.page)
        return {NOTE_TAG: run_note(document, links)}

    def _upload(
        self,
        client: MlflowClient,
        delivery: Delivery,
        document: PerfDocument | None = None,
        *,
        page_of: PerfDocument | None = None,
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="mlflow-perf-") as folder:
            root = Path(folder)
            if document is not None:
                place = root / delivery.artifact_path
                place.mkdir(parents=True)
                document.save(place / node_file(delivery.index))
            page = None if page_of is None else _page(page_of)
            if page is not None:
                (root / REPORT_FILE).write_text(page, encoding="utf-8")
            client.log_artifacts(str(delivery.run_id), folder)


@contextmanager
def _told_as_not_uploaded() -> Iterator[None]:
    try:
        yield
    # Whatever the artifact store's own library raises.
    except Exception as error:
        raise NotUploadedError(
            f"its figures are in the run, its artifacts are not: {first_line(error)}"
        ) from error


def _end_if_own(client: MlflowClient, delivery: Delivery) -> None:
    if delivery.own_run:
        _end_run(client, str(delivery.run_id), delivery.document)


def _end_run(client: MlflowClient, run_id: str, document: NodeDocument) -> None:
    """Set a run's status, and its end to that of the job, which may be long over by now."""
    ended = time.time()
    if document.started is not None and document.duration_sec is not None:
        ended = min(ended, document.started + document.duration_sec)
    targets.end_run(client, run_id, document.status or "FINISHED", ended=ended)


def _page(document: PerfDocument) -> str | None:
    try:
        return html.render(document)
    # A sink's edge: a page that cannot be drawn must not cost the figures and the JSON.
    except Exception:  # noqa: BLE001
        _log.warning("The HTML report could not be made.", exc_info=True)
        return None


def _other_nodes(client: MlflowClient, delivery: Delivery, known: PerfDocument) -> PerfDocument:
    """Return the documents of the run's other nodes; those that are known are not fetched again."""
    run_id = str(delivery.run_id)
    files = [f.path for f in client.list_artifacts(run_id, delivery.artifact_path) if not f.is_dir]
    document = PerfDocument({i: n for i, n in known.nodes.items() if i != delivery.index})
    with tempfile.TemporaryDirectory(prefix="mlflow-perf-") as folder:
        for path in files:
            name = re.fullmatch(r"node-(\d{1,18})\.json", path.rpartition("/")[2])
            if name is None or int(name[1]) in (delivery.index, *document.nodes):
                continue
            mine = f"{delivery.artifact_path}/{name[0]}"  # the server's own path may lead out
            local = fetch_file(client, run_id, mine, Path(folder))
            try:
                document = document.merge(PerfDocument.from_json(local.read_bytes()))
            except DocumentError as error:
                _log.warning("%s of run %s is left out: %s", path, run_id, error)
    return document
