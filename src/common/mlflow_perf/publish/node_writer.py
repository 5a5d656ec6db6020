"""Writes a node's report to MLflow: its figures, its artifacts, and the run's end.

Everything goes through `MlflowClient` and the id of a run. The fluent interface keeps an active run
per thread, and would open a second run beside ours.
"""

from __future__ import annotations

import logging
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.uris import first_line
from mlflow_perf.errors import DocumentError, NotUploadedError
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.publish.note import REPORT_FILE, renew_note, tag_run, write_run_note
from mlflow_perf.reports import html
from mlflow_perf.tracking.batches import find_limits, rank_metrics, split_batches
from mlflow_perf.tracking.client import (
    create_run,
    discard_run,
    end_run,
    open_client,
    provide_experiment,
)
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.load import fetch_file
from mlflow_perf.tracking.run_handle import Claim

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["write_node"]

_UPLOAD_SEC = 3600.0  # the caller has a deadline of its own
_MAX_LOOKS = 5  # for other nodes that end at the same time
_log = logging.getLogger(__name__)


def write_node(delivery: Delivery, *, claim: Claim | None = None) -> str:
    """Write a node's report and return the id of the run that has it.

    It is safe to repeat this: the same figures and files are written again.

    Args:
        delivery: The report. Its run is created if there is none.
        claim: The permission to create the run; default: one that nobody withdraws.

    Raises:
        RunNotFoundError: When the run does not exist (any more).
        TimeoutError: When the claim was withdrawn while the run was created.
        NotUploadedError: When the run has the figures and has ended, but the artifacts are missing.
        Exception: Whatever MLflow raises when the store does not take it.
    """
    run, document = delivery.run, delivery.document
    client = open_client(run.tracking_uri)
    if run.run_id is None:
        info = create_run(
            run.run_name or "mlflow-perf",
            tracking_uri=run.tracking_uri,
            experiment_id=provide_experiment(run),
            started=document.started,
        ).info
        claim = claim or run.claim()
        if not claim.adopt(info.run_id, own=True, experiment_id=info.experiment_id):
            discard_run(info.run_id, tracking_uri=run.tracking_uri)
            raise TimeoutError("the run came after the time for sending")
    document.run_id = run.run_id
    is_alone = int(document.node.get("count", 1)) <= 1 and delivery.index == 0
    try:
        (_write_alone if is_alone else _write_with_others)(client, delivery)
    except NotUploadedError:
        # Artifacts may never arrive, say for want of a credential. The run ends all the same.
        _end_if_own(client, delivery)
        raise
    _end_if_own(client, delivery)
    return str(run.run_id)


def _write_alone(client: MlflowClient, delivery: Delivery) -> None:
    """Write a job of one node: figures and artifacts side by side."""
    mine = PerfDocument({delivery.index: delivery.document})
    # One after the other, each would wait for the way to a distant server and back.
    upload = BackgroundCall(
        lambda: _upload(client, delivery, mine, page_of=mine), name="perf-upload"
    )
    _log_figures(client, delivery, mine)
    with _as_not_uploaded():
        upload.result(_UPLOAD_SEC)


def _write_with_others(client: MlflowClient, delivery: Delivery) -> None:
    """Write this node's figures, and the whole run's until no other node has come meanwhile.

    Nodes end at about the same time. Each uploads its own document first, then looks which others
    are there, and looks again after it wrote the whole. So the last look of all sees every node.
    """
    mine = PerfDocument({delivery.index: delivery.document})
    try:
        with _as_not_uploaded():
            _upload(client, delivery, mine)
    except NotUploadedError:
        # Figures of the whole run would be those of this node alone, and replace better ones.
        _log_figures(client, delivery, mine, with_run=False)
        raise
    document, seen = mine, -1
    for _ in range(_MAX_LOOKS):
        document = mine.merge(_fetch_other_nodes(client, delivery, document))
        if len(document.nodes) == seen:
            break
        seen = len(document.nodes)
        _log_figures(client, delivery, document)
        _upload(client, delivery, page_of=document)


def _log_figures(
    client: MlflowClient, delivery: Delivery, document: PerfDocument, *, with_run: bool = True
) -> None:
    """Log the node's metrics, those of the whole run, the tags and the overview.

    Args:
        client: A client of the store.
        delivery: The node's report.
        document: All nodes that are known.
        with_run: Whether to log the metrics of the whole run.
    """
    run, run_id = delivery.run, str(delivery.run.run_id)
    prefix = delivery.metrics_prefix
    of_node = rank_metrics(delivery.document.summary, prefix, delivery.index)
    of_run = rank_metrics(document.run_summary if with_run else {}, prefix, 0)
    note = renew_note(
        client,
        run_id,
        lambda links: write_run_note(document, links),
        tracking_uri=run.tracking_uri,
        page=run.has_page,
    )
    tags = {**delivery.tags, **tag_run(document), **note}
    limits = find_limits(run.tracking_uri)
    for metrics, some_tags in split_batches(of_node, of_run, tags, limits):
        client.log_batch(run_id, metrics=metrics, tags=some_tags)


def _upload(
    client: MlflowClient,
    delivery: Delivery,
    document: PerfDocument | None = None,
    *,
    page_of: PerfDocument | None = None,
) -> None:
    """Upload artifacts in one call.

    Args:
        client: A client of the store.
        delivery: The node's report.
        document: What to upload as the node's JSON.
        page_of: What to draw as the run's HTML report.
    """
    with tempfile.TemporaryDirectory(prefix="mlflow-perf-") as folder:
        root = Path(folder)
        if document is not None:
            place = root / delivery.artifact_path
            place.mkdir(parents=True)
            document.save(place / f"node-{delivery.index}.json")
        if page_of is not None:
            try:
                (root / REPORT_FILE).write_text(html.render(page_of), encoding="utf-8")
            # A page that cannot be drawn must not cost the figures and the JSON.
            except Exception:  # noqa: BLE001
                _log.warning("The HTML report could not be made.", exc_info=True)
        client.log_artifacts(str(delivery.run.run_id), folder)


@contextmanager
def _as_not_uploaded() -> Iterator[None]:
    try:
        yield
    # Whatever the library of the artifact store raises.
    except Exception as error:
        raise NotUploadedError(
            f"its figures are in the run, its artifacts are not: {first_line(error)}"
        ) from error


def _end_if_own(client: MlflowClient, delivery: Delivery) -> None:
    """End a run of ours at the time when the job ended, which may be long ago."""
    document = delivery.document
    if delivery.run.own_run:
        ended = time.time()
        if document.started is not None and document.duration_sec is not None:
            ended = min(ended, document.started + document.duration_sec)
        status = document.status or "FINISHED"
        end_run(client, str(delivery.run.run_id), status, ended=ended)


def _fetch_other_nodes(
    client: MlflowClient, delivery: Delivery, known: PerfDocument
) -> PerfDocument:
    """Return the documents of the run's other nodes; known ones are not fetched again."""
    run_id = str(delivery.run.run_id)
    files = [f.path for f in client.list_artifacts(run_id, delivery.artifact_path) if not f.is_dir]
    document = PerfDocument({i: n for i, n in known.nodes.items() if i != delivery.index})
    with tempfile.TemporaryDirectory(prefix="mlflow-perf-") as folder:
        for path in files:
            name = re.fullmatch(r"node-(\d{1,18})\.json", path.rpartition("/")[2])
            if name is None or int(name[1]) in (delivery.index, *document.nodes):
                continue
            # The path that the server gives may lead out of the folder; ours does not.
            local = fetch_file(client, run_id, f"{delivery.artifact_path}/{name[0]}", Path(folder))
            try:
                document = document.merge(PerfDocument.from_json(local.read_bytes()))
            except DocumentError as error:
                _log.warning("%s of run %s is left out: %s", path, run_id, error)
    return document
