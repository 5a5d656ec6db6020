"""Finds the place of a report in a run that may hold other reports.

The first component of a run has the plain keys and the folder itself; another one is kept below its
name. Of two reports of the same component and node, the one that began later counts, and the other
stays beside it under another name. Two hosts that both say that they are node 0 are two nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING

from mlflow_perf.core.format import clean_folder_name, clean_metric_key
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.temporary import temporary_folder
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import CIRCUMSTANCES, NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import TAG
from mlflow_perf.tracking.run_files import fetch_file, list_files

if TYPE_CHECKING:
    from mlflow import MlflowClient

_NODE_FILE = re.compile(r"node-(\d{1,18})\.json")
_log = get_logger(__name__)

Reports = Mapping[str, Mapping[int, NodeDocument]]
"""Folder below the artifact path, empty for the path itself → index of the node → its report."""


REPEATED_TAG = f"{TAG}repeated"
"""Tag of a run whose job failed and was repeated into it, with the Unix time of that."""

_COMPONENT_TAG = "mlflow_perf.component"  # that of the plain keys


@dataclass(frozen=True)
class Slot:
    """The place of a report in its run.

    Attributes:
        component: The component, if another one has the plain keys; else None.
        index: The node's index.
        outdated: Index of each node whose report this one replaces → that report.
        is_older: Whether the run has a later report of this component and node, which stays.
    """

    component: str | None = None
    index: int = 0
    outdated: Mapping[int, NodeDocument] = field(default_factory=dict)
    is_older: bool = False

    @property
    def folder(self) -> str:
        """Folder of the document below the artifact path; empty for the path itself."""
        return "" if self.component is None else clean_folder_name(self.component)

    @property
    def prefix(self) -> str:
        """Put before the keys of the metrics."""
        return "" if self.component is None else f"{clean_metric_key(self.component)}/"

    @property
    def path(self) -> str:
        """The document's path below the artifact path."""
        return self.place(f"node-{self.index}.json")

    def place(self, name: str) -> str:
        """Return the path of a file in the folder, below the artifact path."""
        return f"{self.folder}/{name}".lstrip("/")


def find_slot(mine: NodeDocument, index: int, reports: Reports, *, repeated: float = 0.0) -> Slot:
    """Return the place of a report among the reports that its run already has.

    Args:
        mine: The report.
        index: The node's index as the launcher says.
        reports: The reports in the run; an earlier state of this one may be among them.
        repeated: Unix time at which the job was repeated: no report that had ended by then keeps
            the plain keys, whatever its component.
    """
    plain = reports.get("", {})
    holders = [other for other in plain.values() if not _is_outlived(other, repeated)]
    is_plain = not holders or any(other.component == mine.component for other in holders)
    component = None if is_plain else mine.component or "other"
    known = plain if component is None else reports.get(clean_folder_name(component), {})
    known = {
        i: other
        for i, other in known.items()
        if other.component == mine.component or (is_plain and _is_outlived(other, repeated))
    }
    # What an earlier attempt of the whole job has left counts no longer, on no node.
    left = {i: other for i, other in known.items() if _is_outlived(other, repeated)}
    own = next((i for i, other in known.items() if is_same_recording(other, mine)), None)
    if own is None and index in known:
        other = known[index]
        hosts = mine.node.get("hostname"), other.node.get("hostname")
        is_meanwhile = _start(mine) < _end(other) and _start(other) < _end(mine)
        # Two hosts that worked at the same time are two nodes.
        if None not in hosts and hosts[0] != hosts[1] and is_meanwhile:
            index = max([*known, int(mine.node.get("count", 1)) - 1]) + 1
    index = index if own is None else own
    there = known.get(index)
    if there is None or is_same_recording(there, mine):
        # A later attempt with fewer nodes has no place for this node's report.
        is_left_over = any(
            index >= int(other.node.get("count", 1)) > 1 and _end(mine) <= _start(other)
            for other in known.values()
        )
        return Slot(component, index, {} if is_left_over else left, is_older=is_left_over)
    if _start(mine) < _start(there):
        return Slot(component, index, is_older=True)
    # An earlier attempt may have had more nodes than this one.
    count = int(mine.node.get("count", 1))
    outdated = {
        i: other
        for i, other in known.items()
        if i == index or i in left or (i >= count and _end(other) <= _start(mine))
    }
    return Slot(component, index, outdated)


def read_repeated(tags: Mapping[str, str]) -> float:
    """Return when a run's job was repeated last, by its tags; 0 if it was not."""
    try:
        return float(tags.get(REPEATED_TAG, 0.0))
    except ValueError:  # somebody else's
        return 0.0


def find_left_over(slot: Slot, reports: Reports, repeated: float) -> Reports:
    """Return the further components' reports of a repeated job's earlier attempts.

    Args:
        slot: The place of a report of the present attempt; what that one replaces is left out.
        reports: The reports in the run.
        repeated: Unix time at which the job was repeated.
    """
    return {
        folder: {i: other for i, other in nodes.items() if _is_outlived(other, repeated)}
        for folder, nodes in reports.items()
        if folder not in ("", slot.folder)
    }


def find_unseen_slot(mine: NodeDocument, tags: Mapping[str, str]) -> Slot:
    """Return the place of a report in a run that shows no others.

    Another component's may be known by its figures alone, where artifacts cannot be stored.
    """
    # The runner of a pipeline sets the other tags of a report, too, at the end of a step.
    has_report = f"{TAG}version" in tags
    is_first = not has_report or tags.get(_COMPONENT_TAG, mine.component) == mine.component
    return Slot() if is_first else Slot(mine.component or "other")


def choose_tags(slot: Slot, tags: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    """Return a report's tags for its run: those of host and component are the first component's.

    Args:
        slot: The report's place.
        tags: The report's tags.
        stored: The run's tags from a report that this one replaces.
    """
    if slot.component is not None:
        return {}
    # They were true of the report before, and are not of this one.
    outdated = (f"{TAG}{name}" for name in (*CIRCUMSTANCES, "measured_by"))
    return {**{tag: "" for tag in outdated if stored.get(tag)}, **tags}


def is_same_recording(one: NodeDocument, other: NodeDocument) -> bool:
    """Return whether two reports are states of one recording, say one sent before its end."""
    return (one.component, one.started, one.node.get("hostname"), one.node.get("pid")) == (
        other.component,
        other.started,
        other.node.get("hostname"),
        other.node.get("pid"),
    )


def name_replaced(index: int, document: NodeDocument) -> str:
    """Return the file name under which a replaced report is kept."""
    began = datetime.fromtimestamp(_start(document), timezone.utc)
    return f"replaced-node-{index}-{began:%Y%m%dT%H%M%S.%fZ}.json"


def _is_outlived(document: NodeDocument, repeated: float) -> bool:
    """Return whether its attempt had ended when the job was repeated; 0 where that never was."""
    return repeated > 0.0 and _end(document) <= repeated


def _start(document: NodeDocument) -> float:
    return document.started or 0.0


def _end(document: NodeDocument) -> float:
    return _start(document) + (document.duration_sec or 0.0)


class RunReports:
    """The reports in a run's artifacts; each is fetched once.

    Args:
        client: A client of the store.
        run_id: The run.
        artifact_path: The folder of the reports.
    """

    def __init__(self, client: MlflowClient, run_id: str, artifact_path: str) -> None:
        self._client = client
        self._run_id = run_id
        self._path = artifact_path
        self._fetched: dict[str, NodeDocument | None] = {}

    def look(self, *, again: Iterable[str] = ()) -> Reports:
        """Return the reports that are there now.

        Args:
            again: Paths of reports to fetch again, because they may have been replaced.

        Raises:
            Exception: Whatever MLflow raises when the artifacts cannot be read.
        """
        for path in again:
            self._fetched.pop(path, None)
        found: dict[str, dict[int, NodeDocument]] = {}
        names, folders = self._list("")
        for folder in ("", *folders):
            for name in self._list(folder)[0] if folder else names:
                path = f"{folder}/{name}".lstrip("/")
                if path not in self._fetched:
                    self._fetched[path] = self._fetch(path)
                document = self._fetched[path]
                if document is not None and (match := _NODE_FILE.fullmatch(name)):
                    found.setdefault(folder, {})[int(match[1])] = document
        return found

    def _list(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the node files in a folder, and of the folders in it."""
        files = list_files(self._client, self._run_id, f"{self._path}/{folder}".rstrip("/"))
        # The path that the server gives may lead elsewhere; the last part of it does not.
        names = [(bool(file.is_dir), file.path.rpartition("/")[2]) for file in files]
        return (
            [name for is_dir, name in names if not is_dir and _NODE_FILE.fullmatch(name)],
            [name for is_dir, name in names if is_dir and name not in ("", ".", "..")],
        )

    def _fetch(self, path: str) -> NodeDocument | None:
        """Return one report; None for a file that is no report, or no longer one."""
        full = f"{self._path}/{path}"
        with temporary_folder() as folder:
            local = fetch_file(self._client, self._run_id, full, folder)
            try:
                nodes = PerfDocument.from_json(local.read_bytes()).nodes
            except DocumentError as error:
                _log.warning("%s of run %s is left out: %s", full, self._run_id, error)
                return None
        return next(iter(nodes.values()), None)


def merge_reports(reports: Reports) -> PerfDocument:
    """Return the reports as one document: the first component's nodes, and the other components."""
    whole = [PerfDocument(dict(reports.get("", {})))]
    for folder in sorted(reports.keys() - {""}):
        nodes = dict(reports[folder])
        name = next((n.component for n in nodes.values() if n.component), folder)
        whole.append(PerfDocument(components={name: PerfDocument(nodes)}))
    return reduce(PerfDocument.merge, whole)
