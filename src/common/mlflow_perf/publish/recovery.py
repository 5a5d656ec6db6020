"""What killed and cut-off jobs left in their journals → MLflow. Imports journal and the sinks.

A journal is taken for hostile: only a regular file of this user inside the folder is opened, what
is damaged is cut off, and nothing outside the folder is touched.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_perf.analysis.advice import decide_verdict
from mlflow_perf.core.json_io import from_json
from mlflow_perf.core.uris import is_http, is_refused, local_database, redact_password
from mlflow_perf.errors import DocumentError, MlflowPerfError
from mlflow_perf.model.columns import lookup_kind
from mlflow_perf.model.document import NodeDocument, round_columns
from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary
from mlflow_perf.node.exit_cause import boot_id, new_oom_kills
from mlflow_perf.publish.journal import BEGUN, FORMAT, SUFFIX, live, lock, state_folder
from mlflow_perf.publish.node_writer import MlflowSink
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.collect import collect_operations, collect_transfers
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.records import Kind
from mlflow_perf.tracking.delivery import Delivery, add_recorded
from mlflow_perf.tracking.page_probe import has_page

__all__ = ["Recovered", "read_journal", "recover"]

_MAX_BYTES = 256 << 20
_CAUSE_TAG = "mlflow_perf.cause"
_UNKNOWN = "the process was killed or ended without a word (SIGKILL, OOM kill, os._exit)"
_BEGUN_SEC = 60.0  # older than this, no live process is still making it

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recovered:
    """One journal that was sent.

    Attributes:
        run_id: The run that has its figures now.
        node: The node's index.
        cause: Why the job had not sent them itself.
    """

    run_id: str
    node: int
    cause: str


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a journal for reading and writing, never through a link.

    Raises:
        DocumentError: When it is no regular file, too large, or somebody else's.
        OSError: When it cannot be opened.
    """
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise DocumentError("it is no regular file")
        if hasattr(os, "getuid") and facts.st_uid != os.getuid():
            raise DocumentError("it belongs to another user")
        if facts.st_size > _MAX_BYTES:
            raise DocumentError(f"it is larger than {_MAX_BYTES >> 20} MB")
        yield handle
    finally:
        os.close(handle)


def _read_all(handle: int) -> bytes:
    # Not through a duplicate: closing any descriptor of a file drops the process's lock on it.
    with os.fdopen(handle, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def _read_lines(data: bytes) -> tuple[list[dict[str, Any]], bool]:
    """Return the sound lines from the journal's beginning, and whether any damage followed."""
    lines: list[dict[str, Any]] = []
    for raw in data.split(b"\n"):
        if not raw:
            continue
        try:
            line = from_json(raw)
        except (ValueError, RecursionError):
            return lines, True
        if not isinstance(line, dict):
            return lines, True
        lines.append(line)
    return lines, False


def read_journal(data: bytes, *, name: str = "journal") -> tuple[Delivery, str]:
    """Return what a journal holds, up to its first damage, and why it is there.

    Args:
        data: The journal's bytes.
        name: What to call it in a warning.

    Raises:
        DocumentError: When not even its first line can be read, or it is of a later version.
    """
    lines, damaged = _read_lines(data)
    if not lines or lines[0].get("format") != FORMAT:
        found = lines[0].get("format") if lines else "nothing readable"
        raise DocumentError(f"its first line is not that of a journal: {found!r}")
    if damaged:
        _log.warning("%s is cut off or damaged; what stands before that is recovered.", name)
    head = lines[0]
    try:
        document, cause = _document(head, lines[1:])
        header = next((x["delivery"] for x in reversed(lines) if "delivery" in x), None)
        delivery = Delivery.from_header(dict(header or {}), document)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DocumentError(f"it is damaged: {type(error).__name__}: {error}") from error
    delivery.tags = {**delivery.tags, **_tags(document), _CAUSE_TAG: cause}
    document.run_id = delivery.run_id
    return delivery, cause


def _document(head: Mapping[str, Any], lines: list[dict[str, Any]]) -> tuple[NodeDocument, str]:
    final = next((line["final"] for line in reversed(lines) if "final" in line), None)
    if final is not None:
        return NodeDocument.from_dict(final), "the tracking server could not be reached"
    counters = {str(name) for name in head.get("counters", [])}

    def kind(name: str) -> Kind:
        return Kind.COUNTER if name in counters else lookup_kind(name)

    summary, series = RunningSummary(kind=kind), BoundedSeries(kind=kind)
    document = NodeDocument.from_dict(
        {"node": head.get("node"), "component": head.get("component"), "status": "KILLED"}
    )
    for line in lines:
        if "snapshot" in line:
            _start_from(line["snapshot"], summary, series)
        for row in line.get("rows", []):
            report = _report(row)
            summary.add(report)
            series.append(report)
    for name, value in dict(head.get("facts", {})).items():
        summary.set_fact(str(name), float(value))
    document.summary = summary.metrics()
    document.reports = round_columns(series.columns())
    document.started = float(head["started"]) if "started" in head else None
    document.duration_sec = document.summary.get("duration_sec")
    return document, _cause(head)


def _start_from(
    snapshot: Mapping[str, Any], summary: RunningSummary, series: BoundedSeries
) -> None:
    summary.restore(snapshot["summary"])
    columns = snapshot["columns"]
    for i in range(len(next(iter(columns.values()), []))):
        series.append(_report({name: column[i] for name, column in columns.items()}))


def _report(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        str(name): float(value)
        for name, value in row.items()
        if type(value) in (int, float) and abs(value) <= sys.float_info.max
    }


def _cause(head: Mapping[str, Any]) -> str:
    if not _of_this_host(head):
        # Neither its start nor its control groups can be looked up from here.
        return _UNKNOWN
    if head.get("boot_id") and head["boot_id"] != boot_id():
        return "the machine went down"
    counts = {str(file): count for file, count in dict(head.get("oom_kills", {})).items()}
    if new_oom_kills({file: n for file, n in counts.items() if type(n) is int}):
        return "the process was killed, probably out of memory: the OOM killer struck in its cgroup"
    return _UNKNOWN


def _tags(document: NodeDocument) -> dict[str, str]:
    finding = decide_verdict(document.summary, document.node)
    document.extra.update(bottleneck=finding.bottleneck, advice=finding.advice)
    return {
        "mlflow_perf.bottleneck": finding.bottleneck,
        "mlflow_perf.advice": finding.advice,
        "mlflow_perf.status": document.status or "KILLED",
    }


def _of_this_host(head: Mapping[str, Any]) -> bool:
    node = head.get("node")
    host = node.get("hostname") if isinstance(node, dict) else None
    return host in (None, socket.gethostname())


def recover(folder: Path | None = None, *, of_any_host: bool = False) -> Iterator[Recovered]:
    """Send every orphaned journal of a folder to MLflow, remove it, and yield what was sent.

    Safe to run twice, at once and while jobs run: the journal of a live job, or of one that another
    `recover` sends now, is locked and left alone.

    Args:
        folder: Where the journals lie; default: `state_folder()`.
        of_any_host: Send those of other hosts, too: only where their jobs are known to have ended,
            as a shared file system may not tell that they still write.
    """
    place = state_folder() if folder is None else folder
    _tidy(place)
    away: set[str] = set()
    for path in sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else []:
        if path.name in live:
            continue
        try:
            with _opened(path) as handle:
                if not lock(handle) or not _still_there(path, handle):
                    continue
                recovered = _send(path, _read_all(handle), of_any_host, away)
        except DocumentError as error:
            _log.warning("%s is skipped: %s.", path, error)
        except ConnectionRefusedError as error:
            _log.warning("%s could not be sent and is kept: %s.", path, error)
        except OSError as error:
            _log.warning("%s is skipped: %s.", path, error.strerror or error)
        # A sink's edge: what cannot be sent now stays in its journal, and the others go on.
        except Exception as error:  # noqa: BLE001
            first = redact_password(str(error).split("\n")[0])
            _log.warning("%s could not be sent and is kept: %s", path, first)
        else:
            if recovered is not None:
                yield recovered


def _tidy(place: Path) -> None:
    """Remove what is left of journals whose process died while it was making a file of them.

    The journal itself is whole then. A live process makes such a file within milliseconds.
    """
    for path in place.glob(f"*{BEGUN}"):
        if path.with_suffix(SUFFIX).name in live:
            continue
        try:
            with _opened(path) as handle:
                old = time.time() - os.fstat(handle).st_mtime > _BEGUN_SEC
                if old and lock(handle) and _still_there(path, handle):
                    path.unlink(missing_ok=True)
        except (DocumentError, OSError) as error:
            _log.debug("%s is left there: %s", path, error)


def _still_there(path: Path, handle: int) -> bool:
    """Tell whether the open file is still the journal: another recover may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except OSError:
        return False


def _spool_folder(parent: Path, name: object) -> Path | None:
    """Return the folder of the job's operations, if it is one and lies where it must."""
    if not isinstance(name, str) or not re.fullmatch(r"mlflow-perf-spool-\w+", name):
        return None
    folder = parent / name
    return folder if folder.is_dir() and not folder.is_symlink() else None


def _add_spooled(folder: Path, document: NodeDocument) -> None:
    """Add the operations and transfers that the job's processes had written before they ended."""
    operations = OperationMetrics()
    collect_operations(folder, operations)
    add_recorded(document, operations, collect_transfers(folder))


def _check_store(delivery: Delivery) -> None:
    """See that the run's store is there: MLflow makes an embedded one anew, and waits for others.

    Raises:
        DocumentError: When an embedded one is not there.
        ConnectionRefusedError: When nothing listens at the other.
    """
    uri = delivery.tracking_uri or ""
    if is_refused(uri):
        raise ConnectionRefusedError(f"nothing listens at {redact_password(uri)}")
    file = local_database(uri)
    if delivery.run_id and file is not None and file.is_absolute() and not file.exists():
        raise DocumentError(
            f"its run was in {file}, which is not there; bring that back, or delete the journal"
        )


@contextmanager
def _asked_once(uri: str, away: set[str]) -> Iterator[None]:
    """Ask a server that hangs once, not for every journal: each would take minutes.

    Raises:
        ConnectionRefusedError: When it did not answer for an earlier journal.
    """
    from mlflow.exceptions import RestException

    if uri in away:
        raise ConnectionRefusedError(f"{redact_password(uri)} did not answer before")
    try:
        yield
    except (RestException, MlflowPerfError):  # an answer, or its artifact store alone
        raise
    except Exception:
        if is_http(uri):
            away.add(uri)
        raise


def _send(path: Path, data: bytes, of_any_host: bool, away: set[str]) -> Recovered | None:
    lines, _ = _read_lines(data[: data.find(b"\n") + 1])
    if lines and not of_any_host and not _of_this_host(lines[0]):
        _log.info("%s is of another host, which may still be writing it; skipped.", path)
        return None
    delivery, cause = read_journal(data, name=str(path))
    folder = _spool_folder(path.parent, lines[0].get("spool")) if lines else None
    if folder is not None and not delivery.document.operations:
        _add_spooled(folder, delivery.document)
    _check_store(delivery)
    with _asked_once(delivery.tracking_uri or "", away):
        delivery.page = has_page(delivery.tracking_uri)
        run_id = MlflowSink().write(delivery)
    path.unlink(missing_ok=True)
    if folder is not None:
        spool.remove(folder)
    return Recovered(run_id, delivery.index, cause)
