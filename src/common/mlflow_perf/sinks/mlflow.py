"""The only place that writes a node's figures to MLflow. Imports delivery and document.

Everything goes through `MlflowClient` and a run's id: the fluent interface keeps the active run per
thread and would open a second run from ours.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf.delivery import Delivery
from mlflow_perf.document import PerfDocument, to_json
from mlflow_perf.errand import Errand
from mlflow_perf.errors import DocumentError, RunNotFoundError
from mlflow_perf.sinks import html

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = [
    "MlflowSink",
    "Target",
    "chosen_experiment",
    "clean_key",
    "discard_run",
    "find_run",
    "new_run",
    "node_file",
    "open_run",
]

NOTE_TAG = "mlflow.note.content"
REPORT_FILE = "perf_report.html"

_MAX_METRICS, _MAX_TAGS = 1000, 100  # of one log_batch request
_MAX_KEY, _MAX_TAG_VALUE = 250, 5000
_UPLOAD_SEC = 3600.0  # whoever calls us has a deadline of its own
_MAX_LOOKS = 5  # for other nodes that end at the same time
_log = logging.getLogger(__name__)


@dataclass
class Target:
    """A run that can be written to.

    Attributes:
        run_id: Its id.
        own: Whether we made it, and so end it.
        experiment_id: The experiment that holds it.
        tags: The tags that it had when we last looked.
    """

    run_id: str
    own: bool = False
    experiment_id: str | None = None
    tags: dict[str, str] = field(default_factory=dict)


def _client(tracking_uri: str | None) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri or None)


def _target(run: Run, *, own: bool) -> Target:
    return Target(run.info.run_id, own, run.info.experiment_id, dict(run.data.tags))


def open_run(run_id: str, *, tracking_uri: str | None = None) -> Target:
    """Return a run that exists.

    Raises:
        RunNotFoundError: When the store answers that it has no such run, or that it was deleted.
        Exception: Whatever MLflow raises when the store does not answer.
    """
    from mlflow.exceptions import MlflowException

    try:
        run = _client(tracking_uri).get_run(run_id)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise RunNotFoundError(
            f"There is no MLflow run {run_id!r} at {_where(tracking_uri)}."
        ) from None
    if run.info.lifecycle_stage == "deleted":
        raise RunNotFoundError(f"The MLflow run {run_id!r} at {_where(tracking_uri)} was deleted.")
    return _target(run, own=False)


def _where(tracking_uri: str | None) -> str:
    import mlflow

    return tracking_uri or mlflow.get_tracking_uri()


def new_run(
    name: str,
    *,
    tracking_uri: str | None = None,
    experiment_id: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Target:
    """Make a run, with the tags that `mlflow.start_run` would give it, and return it.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    from mlflow.tracking.context.registry import resolve_tags

    run = _client(tracking_uri).create_run(
        experiment_id or _current_experiment_id(tracking_uri),
        tags=resolve_tags(tags),
        run_name=name,
    )
    return _target(run, own=True)


def find_run(tag: str, value: str, *, tracking_uri: str | None = None) -> Target | None:
    """Return the newest run of the current experiment with a tag, or None.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    text = value.replace("'", "")
    found = _client(tracking_uri).search_runs(
        [_current_experiment_id(tracking_uri)], f"tags.`{tag}` = '{text}'", max_results=1
    )
    return _target(found[0], own=False) if found else None


def discard_run(run_id: str, *, tracking_uri: str | None = None) -> None:
    """Delete a run that was made for nothing: its job's report is elsewhere.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    _client(tracking_uri).delete_run(run_id)


def chosen_experiment() -> tuple[str | None, str | None]:
    """Return id and name of the experiment that was asked for, without asking any server."""
    # What `set_experiment` chose; not public, and there only once MLflow is imported.
    fluent = sys.modules.get("mlflow.tracking.fluent")
    chosen = getattr(fluent, "_active_experiment_id", None)
    if chosen:
        return str(chosen), None
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or None
    return (None if name else os.environ.get("MLFLOW_EXPERIMENT_ID") or None), name


def _experiment_of(client: MlflowClient, delivery: Delivery) -> str | None:
    """Return the experiment that was asked for when the job ran, made if need be."""
    if delivery.experiment_id is not None or delivery.experiment_name is None:
        return delivery.experiment_id
    found = client.get_experiment_by_name(delivery.experiment_name)
    if found is not None:
        return str(found.experiment_id)
    return str(client.create_experiment(delivery.experiment_name))


def _current_experiment_id(tracking_uri: str | None) -> str:
    """Return the experiment in which `mlflow.start_run` would make a run now."""
    import mlflow

    if tracking_uri in (None, "", mlflow.get_tracking_uri()):
        with contextlib.suppress(ImportError):
            # Not public, but the only way to what `set_experiment` and the platform chose.
            from mlflow.tracking.fluent import _get_experiment_id

            return str(_get_experiment_id())
    if experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return experiment_id
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    found = _client(tracking_uri).get_experiment_by_name(name) if name else None
    return "0" if found is None else str(found.experiment_id)


def node_file(index: int) -> str:
    """Return the file name of a node's document."""
    return f"node-{index}.json"


def clean_key(key: str) -> str:
    """Return a metric key that every MLflow store takes; one bad key spoils a whole batch."""
    text = re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)
    key = "/".join(part for part in text.split("/") if part.strip("."))
    return re.sub(r"^\.\.+", "", key)[:_MAX_KEY].rstrip("/. ") or "_"


def _chunks(items: list[Any], size: int) -> Iterable[list[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))


class MlflowSink:
    """Writes deliveries: one batch of metrics and tags, then the artifacts, then the run's end."""

    def write(self, delivery: Delivery) -> str:
        """Write all of a delivery and return the id of the run that has it.

        Safe to repeat: the same figures and files are written again.

        Raises:
            RunNotFoundError: When the run does not exist (any more).
            Exception: Whatever MLflow raises when the store does not take it.
        """
        client = _client(delivery.tracking_uri)
        if delivery.run_id is None:
            made = new_run(
                delivery.run_name or "mlflow-perf",
                tracking_uri=delivery.tracking_uri,
                experiment_id=_experiment_of(client, delivery),
            )
            delivery.run_id, delivery.own_run = made.run_id, True
            delivery.document.run_id = made.run_id
        if self._is_alone(delivery):
            self._write_alone(client, delivery)
        else:
            self._write_with_others(client, delivery)
        if delivery.own_run:
            _end_run(client, delivery.run_id, delivery.document.status or "FINISHED")
        return delivery.run_id

    def _is_alone(self, delivery: Delivery) -> bool:
        return int(delivery.document.node.get("count", 1)) <= 1 and delivery.index == 0

    def _write_alone(self, client: MlflowClient, delivery: Delivery) -> None:
        mine = PerfDocument({delivery.index: delivery.document})
        # Side by side: against a server far away each request costs its way there and back.
        upload = Errand(
            lambda: self._upload(client, delivery, mine, page_of=mine), name="perf-upload"
        )
        self._log_figures(client, delivery, mine)
        upload.result(_UPLOAD_SEC)

    def _write_with_others(self, client: MlflowClient, delivery: Delivery) -> None:
        """Write this node's figures, then the whole run's until no other node came meanwhile.

        Nodes end at about the same time: each one puts its document there first and then looks who
        is there, and looks again after it wrote, so that the last look of all has every node.
        """
        mine = PerfDocument({delivery.index: delivery.document})
        self._upload(client, delivery, mine)
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
        self, client: MlflowClient, delivery: Delivery, document: PerfDocument
    ) -> None:
        from mlflow.entities import RunTag

        prefix = delivery.metrics_prefix
        metrics = _metrics(delivery.document.summary, prefix, delivery.index)
        metrics += _metrics(document.run_summary, prefix, 0)
        tags = dict(delivery.tags)
        if delivery.note and self._may_have_note(client, delivery):
            tags[NOTE_TAG] = delivery.note
        run_tags = [RunTag(key, value[:_MAX_TAG_VALUE]) for key, value in tags.items()]
        batches = list(_chunks(metrics, _MAX_METRICS)) or [[]]
        for number, batch in enumerate(batches):
            few = run_tags[:_MAX_TAGS] if number == 0 else []
            client.log_batch(str(delivery.run_id), metrics=batch, tags=few)

    def _may_have_note(self, client: MlflowClient, delivery: Delivery) -> bool:
        # A note that a person wrote is never touched. Nobody has written one on a run of ours.
        if delivery.own_run:
            return True
        return NOTE_TAG not in client.get_run(str(delivery.run_id)).data.tags

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


def _end_run(client: MlflowClient, run_id: str, status: str) -> None:
    """Set a run's status and end.

    `MlflowClient.set_terminated` prints two lines to the job's standard output, which is not ours.
    """
    from mlflow.entities import RunStatus

    try:
        store = client._tracking_client.store  # noqa: SLF001 - see above
    except AttributeError:
        client.set_terminated(run_id, status)
    else:
        now_ms = int(1000 * time.time())
        store.update_run_info(run_id, RunStatus.from_string(status), now_ms, None)


def _page(document: PerfDocument) -> str | None:
    try:
        return html.render(document)
    # A sink's edge: a page that cannot be drawn must not cost the figures and the JSON.
    except Exception:  # noqa: BLE001
        _log.warning("The HTML report could not be made.", exc_info=True)
        return None


def _metrics(summary: Mapping[str, float], prefix: str, step: int) -> list[Any]:
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    finite = {key: value for key, value in summary.items() if math.isfinite(value)}
    if len(finite) < len(summary):
        left_out = sorted(summary.keys() - finite.keys())
        _log.warning("Left out, because their values are not finite: %s.", to_json(left_out))
    return [Metric(clean_key(prefix + k), float(v), now_ms, step) for k, v in finite.items()]


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
            local = Path(client.download_artifacts(run_id, mine, folder))
            try:
                document = document.merge(PerfDocument.from_json(local.read_bytes()))
            except DocumentError as error:
                _log.warning("%s of run %s is left out: %s", path, run_id, error)
    return document
