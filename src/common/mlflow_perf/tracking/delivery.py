"""What one node wants to have in MLflow, as plain data.

Imports the document, operations and transfers.

The session hands it to the sinks; the journal keeps it on disk, so that whoever finds it there
after a crash can send it as the job itself would have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.recorders import transfers
from mlflow_perf.recorders.operations import OperationMetrics

__all__ = ["Delivery", "add_recorded"]

_MAX_INDEX = 10**9  # as of the setting `node`


@dataclass
class Delivery:
    """A node's document and where it goes.

    Attributes:
        document: What the node reported.
        index: The node's index, the step of its metrics.
        run_id: The run; None while none could be had.
        own_run: Whether `report()` made the run, and so ends it.
        tracking_uri: The MLflow store.
        experiment_id: Where to make the run, if it is still to be made.
        experiment_name: The same by name, while no server could tell the id.
        run_name: Name of the run, if it is still to be made.
        artifact_path: Folder of the JSON artifact.
        metrics_prefix: Put before each metric's key.
        tags: Tags for the run.
        page: Whether the store's server has the page `/perf`.
    """

    document: NodeDocument = field(default_factory=NodeDocument)
    index: int = 0
    run_id: str | None = None
    own_run: bool = False
    tracking_uri: str = ""
    experiment_id: str | None = None
    experiment_name: str | None = None
    run_name: str | None = None
    artifact_path: str = "perf"
    metrics_prefix: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    page: bool = False

    def header(self) -> dict[str, Any]:
        """Return everything but the document, as plain data."""
        data = asdict(self)
        del data["document"]
        return data

    @classmethod
    def from_header(cls, data: dict[str, Any], document: NodeDocument) -> Delivery:
        """Return the delivery that `header` described.

        Raises:
            DocumentError: When a value has another type than it must.
        """
        known = {f.name for f in fields(cls)} - {"document"}
        delivery = cls(document=document, **{k: v for k, v in data.items() if k in known})
        texts = (delivery.tracking_uri, delivery.artifact_path, delivery.metrics_prefix)
        sound = all(isinstance(text, str) for text in texts)
        sound = sound and type(data.get("index")) is int and type(data.get("tags")) is dict
        sound = sound and 0 <= data["index"] <= _MAX_INDEX and type(delivery.page) is bool
        maybe = ("run_id", "experiment_id", "experiment_name", "run_name")
        sound = sound and all(isinstance(data.get(name), (str, type(None))) for name in maybe)
        sound = sound and all(isinstance(tag, str) for tag in data["tags"].values())
        if not sound or not _stays_inside(delivery.artifact_path):
            raise DocumentError("The journal's header is damaged.")
        return delivery


def _stays_inside(path: str) -> bool:
    """Tell whether a path, taken below a folder, stays below it on every system."""
    absolute = path.startswith("/") or bool(Path(path).drive)
    return not absolute and "\\" not in path and ".." not in path.split("/")


def add_recorded(
    document: NodeDocument,
    operations: OperationMetrics,
    named: Mapping[str, transfers.NixlKVConnectorStats],
) -> None:
    """Put what a job's processes recorded into its document, and the metrics made of it.

    Args:
        document: The node's document.
        operations: The operations.
        named: The transfers, by connector.
    """
    document.operations = operations.as_dict()
    document.summary.update(operations.summary_metrics())
    document.transfers = transfers.as_dict(named)
    for name, stats in named.items():
        document.summary.update(transfers.summary_metrics(name, stats))
