"""A finished report and its destination, as plain data that the journal can keep."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.tracking.run_handle import RunHandle

_MAX_INDEX = 10**9  # as of the setting `node`
_RUN_FIELDS = (
    "run_id", "experiment_id", "experiment_name", "run_name", "parent_id", "job_key", "workspace",
)  # fmt: skip
_TEXTS = ("tracking_uri", "artifact_path", "metrics_prefix", "folder")


@dataclass
class Delivery:
    """A node's document and where it goes.

    Attributes:
        document: The report of the node.
        run: The run that gets it.
        index: The node's index, which is the step of its metrics.
        artifact_path: Folder of the JSON artifact.
        metrics_prefix: Put before each metric's key.
        tags: Tags for the run.
        all_metrics: Whether MLflow gets every metric, and not only the most important.
        is_brief: Whether the run gets only its figures and its document. It is one of many short
            runs that this process has just created, so no other process reports to it.
        is_left: Whether it is for the run of a pipeline's step that the runner is to make.
    """

    document: NodeDocument = field(default_factory=NodeDocument)
    run: RunHandle = field(default_factory=RunHandle)
    index: int = 0
    artifact_path: str = "perf"
    metrics_prefix: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    all_metrics: bool = False
    is_brief: bool = False
    is_left: bool = False

    def __post_init__(self) -> None:
        self.address()

    def address(self) -> None:
        """Write the run's id into the document: when the delivery is made, and for a new run."""
        self.document.run_id = self.run.run_id

    def header(self) -> dict[str, Any]:
        """Return everything but the document as plain data: the journal's header."""
        return {
            "index": self.index,
            "run_id": self.run.run_id,
            "own_run": self.run.own_run,
            "tracking_uri": self.run.tracking_uri,
            "experiment_id": self.run.experiment_id,
            "experiment_name": self.run.experiment_name,
            "run_name": self.run.run_name,
            "started": self.run.started,
            "parent_id": self.run.parent_id,
            "job_key": self.run.job_key,
            "workspace": self.run.workspace,
            "artifact_path": self.artifact_path,
            "metrics_prefix": self.metrics_prefix,
            "tags": self.tags,
            "page": self.run.has_page,
            "all_metrics": self.all_metrics,
            "folder": self.run.folder,
            "nonce": self.run.nonce,
            "left": self.is_left or self.run.is_left,
        }

    @classmethod
    def from_header(cls, data: dict[str, Any], document: NodeDocument) -> Delivery:
        """Return the delivery that `header` described.

        Args:
            data: The header, from a journal that anybody may have written.
            document: The report.

        Raises:
            DocumentError: When a value has the wrong type.
        """
        # Journals of 0.1 do not name the workspace and the folder.
        header = {**cls().header(), "workspace": None, "folder": "", **data}
        texts = (header[name] for name in _TEXTS)
        path, tags, index = header["artifact_path"], data.get("tags"), data.get("index")
        if (
            not all(isinstance(text, str) for text in texts)
            or not all(isinstance(header[name], (str, type(None))) for name in _RUN_FIELDS)
            or any(type(header[name]) is not bool for name in ("page", "all_metrics", "left"))
            or type(header["started"]) not in (int, float, NoneType)
            or type(index) is not int
            or not 0 <= index <= _MAX_INDEX
            or type(tags) is not dict
            or not all(isinstance(tag, str) for tag in tags.values())
            # The path must stay below its folder on every system.
            or path.startswith("/")
            or Path(path).drive
            or "\\" in path
            or ".." in path.split("/")
        ):
            raise DocumentError("The journal's header is damaged.")
        run = RunHandle(
            tracking_uri=header["tracking_uri"],
            own_run=bool(header["own_run"]),
            started=header["started"],
            folder=header["folder"],
            has_page=header["page"],
            nonce=re.sub(r"[^0-9a-f]", "", str(header["nonce"]))[:32],
            **{name: header[name] for name in _RUN_FIELDS},
        )
        run.run_id = run.run_id or None  # a gateway may have answered without one
        return cls(
            document, run, index, path, header["metrics_prefix"], tags, header["all_metrics"],
            is_left=header["left"] and run.run_id is None,
        )  # fmt: skip
