"""Recovery: sends the journals of killed and disconnected jobs to MLflow.

A journal may be hostile. Only a regular file of this user is opened, damaged parts are cut off, and
nothing outside the folder is touched but the journals of a killed pipeline's steps, and what the
ranks of this user's killed jobs left on this node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from mlflow_perf.core.json_io import from_json, round_columns
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import is_http, is_same_store, reason_of, redact_password
from mlflow_perf.core.workspaces import working_in
from mlflow_perf.errors import DocumentError, MlflowPerfError
from mlflow_perf.model.columns import COLUMNS, lookup_kind
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary
from mlflow_perf.node.exit_cause import End
from mlflow_perf.publish.final_document import (
    CAUSE_TAG,
    add_left_over,
    add_recorded,
    judge_document,
    make_final_document,
    tag_document,
)
from mlflow_perf.publish.group_journal import GROUP_PART
from mlflow_perf.publish.job_folder import settle_store
from mlflow_perf.publish.journal import FORMAT, REMOVED, SUFFIX, live
from mlflow_perf.publish.journal_file import find_state_folder, is_same_file, lock, open_journal
from mlflow_perf.publish.left_over import remove_begun, remove_what_is_left
from mlflow_perf.publish.node_writer import write_node
from mlflow_perf.publish.pipeline_journal import explain_unfinished, find_work, list_left_steps
from mlflow_perf.publish.recovery_checks import (
    CUT_OFF,
    UNWRITTEN,
    call_in_workspace,
    check_store,
    end_without_figures,
    find_destination,
    find_end,
    find_spool,
    is_known,
    is_of_this_host,
    is_refusal,
    remove_journal,
    shorten,
)
from mlflow_perf.publish.step_record import is_stand_in, share_run
from mlflow_perf.publish.workflow_renewal import renew_workflows
from mlflow_perf.recorders.collect import collect_operations, collect_steps, collect_transfers
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.steps import StepMetrics
from mlflow_perf.recorders.transfers import NixlKVConnectorStats
from mlflow_perf.records import Kind
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.page_probe import has_page

_RATES = {column.name for column in COLUMNS.values() if column.is_rate}

_log = get_logger(__name__)


@dataclass(frozen=True)
class Recovered:
    """What was done with one journal.

    Attributes:
        run_id: The run that has its figures now, or is to have them; None where none is known.
        node: The node's index; None where the journal does not tell it.
        cause: Why the job had not sent them itself; else why the journal stays.
        outcome: `sent`; `known` where the run already had these figures, or more complete ones;
            `not begun` where the job ended before its block began, or a group before its command,
            and at most a run had to be ended; `running`, `other host` or `kept` where the journal
            stays.
        journal: Name of the file.
    """

    run_id: str | None
    node: int | None
    cause: str
    outcome: str = "sent"
    journal: str = ""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do: the run has all figures, or there were none."""
        return self.outcome in ("sent", "known", "not begun")


def _read_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return a journal's valid lines, and the number of the first damaged one; 0 without any."""
    lines: list[dict[str, Any]] = []
    damaged = 0
    for number, raw in enumerate(filter(None, data.split(b"\n")), 1):
        try:
            line = from_json(raw)
        except (ValueError, RecursionError):
            line = None
        if isinstance(line, dict):
            lines.append(line)
        else:
            damaged = damaged or number
    return lines, damaged


def read_journal(
    data: bytes, *, name: str = "journal", spooled: Path | None = None, ended: End | None = None
) -> tuple[Delivery, str]:
    """Return the report in a journal, without its damaged lines, and why the job did not send it.

    Args:
        data: The journal's bytes.
        name: The journal's name in a warning.
        spooled: Folder with the operations that the job's processes had written.
        ended: How the job ended by itself, if that is known.

    Raises:
        DocumentError: When its first line cannot be read, or has a later version.
    """
    lines, damaged = _read_lines(data)
    if damaged == 1 or not lines:
        raise DocumentError("its first line, which says where it goes, cannot be read")
    if (found := lines[0].get("format")) != FORMAT:
        other = "has no format" if found is None else f"has the format {str(found)[:40]!r}"
        raise DocumentError(f"its first line {other}, not {FORMAT!r}")
    if damaged:
        _log.warning("%s is cut off or damaged in line %d. The rest is recovered.", name, damaged)
    begun = next((line["begun"] for line in lines if "begun" in line), None)
    if isinstance(begun, dict):
        lines[0] |= begun
    last = next((line for line in reversed(lines) if "final" in line), None)
    final = None if last is None else last["final"]
    header = next((line["delivery"] for line in reversed(lines) if "delivery" in line), None)
    noted = next((line["ended"] for line in lines if "ended" in line), None)
    operations, named, steps, end = OperationMetrics(), {}, StepMetrics(), None
    if spooled is not None:
        collect_operations(spooled, operations)
        named = collect_transfers(spooled)
        collect_steps(spooled, steps)
    try:
        if last is None or final is None:
            end = ended or (End(*map(str, noted)) if noted else find_end(lines[0], damaged))
            cause = UNWRITTEN if ended else _explain_unsent({}) if noted else end.cause or CUT_OFF
            document = _rebuild_document(lines, end, operations, named, steps)
            add_left_over(document, spooled)
        else:
            cause = _explain_unsent(last)
            document = NodeDocument.from_dict(final)
            if spooled is not None and not (document.operations or document.steps):
                add_recorded(document, operations, named, steps)
            judge_document(document)
        delivery = Delivery.from_header(dict(header or {}), document)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DocumentError(f"it is damaged: {type(error).__name__}: {error}") from error
    delivery.tags = {**delivery.tags, **tag_document(document)}
    if end is not None and end.cause:
        delivery.tags.setdefault(CAUSE_TAG, end.cause)
    return delivery, cause


def _explain_unsent(line: Mapping[str, Any]) -> str:
    """Return why a finished report was not sent; empty where another program was to send it."""
    if line.get("held"):
        return ""
    return str(line.get("unsent") or "the process ended before its report was sent")


def _rebuild_document(
    lines: list[dict[str, Any]],
    end: End,
    operations: OperationMetrics,
    named: Mapping[str, NixlKVConnectorStats],
    steps: StepMetrics,
) -> NodeDocument:
    """Return the document that a killed job would have made of the samples in its journal."""
    head = lines[0]
    counters = {str(name) for name in head.get("counters", [])}

    def find_kind(name: str) -> Kind:
        return Kind.COUNTER if name in counters else lookup_kind(name)

    def clean_row(row: Mapping[str, Any]) -> dict[str, float]:
        return {
            str(name): float(value)
            for name, value in row.items()
            if type(value) in (int, float) and abs(value) <= sys.float_info.max
        }

    known = {"node": head.get("node"), "component": head.get("component")}
    checked = NodeDocument.from_dict({**known, "status": "KILLED"})
    summary, series = RunningSummary(kind=find_kind), BoundedSeries(kind=find_kind)
    for line in lines[1:]:
        if "snapshot" in line:
            summary.restore(line["snapshot"]["summary"])
            columns = line["snapshot"]["columns"]
            for i in range(len(next(iter(columns.values()), []))):
                series.append(clean_row({name: column[i] for name, column in columns.items()}))
        for row in line.get("rows", []):
            report = clean_row(row)
            summary.add(report)
            series.append(report)
    is_one = len(rows := series.rows()) == 1
    if is_one:  # microseconds have no rates and totals: what it saw at that moment counts
        summary = RunningSummary(kind=find_kind)
        seen = {name: n for name, n in rows[0].items() if find_kind(name) is Kind.GAUGE}
        summary.add({name: n for name, n in seen.items() if name not in _RATES})
    for name, value in dict(head.get("facts", {})).items():
        summary.set_fact(str(name), float(value))
    figures = {name: value for name, value in summary.metrics().items() if value or not is_one}
    return make_final_document(
        node=checked.node,
        component=checked.component,
        status=end.status,
        cause=end.cause or None,
        started=float(head["started"]) if "started" in head else None,
        summary=figures,
        reports=round_columns(series.columns()),
        operations=operations,
        transfers=named,
        steps=steps,
    )


def recover(
    folder: Path | None = None,
    *,
    of_any_host: bool = False,
    store: str = "",
    ended: End | None = None,
) -> Iterator[Recovered]:
    """Send every orphaned journal of a folder; yield those that are done. See `recover_each`."""
    each = recover_each(folder, of_any_host=of_any_host, store=store, ended=ended)
    return filter(lambda one: one.is_done, each)


def recover_each(
    folder: Path | None = None,
    *,
    of_any_host: bool = False,
    workspace: str | None = None,
    store: str = "",
    switch_store: bool = False,
    ended: End | None = None,
) -> Iterator[Recovered]:
    """Send every orphaned journal of a folder to MLflow, and yield the result of each.

    A journal that was sent is removed. It is safe to run this twice, at once and while jobs run:
    the journal of a live job is locked, and so is one that another `recover` sends now.

    Args:
        folder: Folder of the journals; default: `find_state_folder()`.
        of_any_host: Also send the journals of other hosts, and those on file systems without locks.
            Use it only when their jobs are known to have ended, because a shared file system may
            not show that a journal is locked.
        workspace: MLflow's workspace for journals of mlflow-perf 0.1, which do not name theirs;
            default: the current one.
        store: Send only what goes there; default: all.
        switch_store: See `renew_workflows`.
        ended: How jobs ended that could not write it, if that is known; else they were killed.
    """
    place = find_state_folder() if folder is None else folder
    remove_begun(place)
    whole = Pass(of_any_host, workspace, store, ended)
    # A group or pipeline comes after its steps: its report is about theirs.
    found = sorted(place.glob(f"*{SUFFIX}"), key=lambda one: (GROUP_PART in one.name, one))
    for path in chain(list_left_steps(place), found):
        recovered = recover_one(path, whole)
        if recovered is not None:
            yield replace(recovered, journal=path.name)
    for shared, runs in whole.sent.items():
        with working_in(shared):
            renew_workflows(runs, switch_store=switch_store)
    remove_what_is_left(place)


@dataclass
class Pass:
    """One pass over a folder.

    Attributes:
        of_any_host: Whether to send a journal whose job may still run, as far as is known here.
        workspace: Where to send a journal that names no workspace; None for the current one.
        store: The only store to send to; empty for any.
        ended: How the jobs ended by themselves, if that is known.
        away: Server that failed before → why.
        sent: Workspace → store and id of each run there that has got a report.
    """

    of_any_host: bool = False
    workspace: str | None = None
    store: str = ""
    ended: End | None = None
    away: dict[str, str] = field(default_factory=dict)
    sent: dict[str | None, list[tuple[str, str]]] = field(default_factory=dict)


def recover_one(path: Path, whole: Pass) -> Recovered | None:
    """Send one journal if its job has ended; a fault is one warning, and the journal stays.

    Returns:
        None where there was nothing to send or to say: its job had only not been able to delete it.
    """
    running = Recovered(None, None, "its job runs, or another recover sends it", "running")
    data, told = b"", set(whole.away.values())
    if path.name in live:
        return running
    try:
        with open_journal(path) as handle:
            if not lock(handle, if_unknown=whole.of_any_host) or not is_same_file(path, handle):
                return running
            # Not through a duplicate: closing any descriptor of a file drops the lock on it.
            with os.fdopen(handle, "rb", closefd=False) as file:
                file.seek(0)
                data = file.read()
            try:
                return _send_journal(path, data, whole)
            except DocumentError:
                raise
            # The edge to MLflow: a journal that cannot be sent now is kept, and the others go on.
            except Exception as error:  # noqa: BLE001
                why, what = reason_of(error), "could not be sent and is kept"
    except FileNotFoundError:  # another recover has sent and removed it since we listed the folder
        return running
    except DocumentError as error:
        why, what = str(error), "is skipped"
    except OSError as error:
        why, what = error.strerror or str(error), "is skipped"
    said = "its server failed before" if why in told else why
    _log.warning("%s %s: %s", path, what, said if said.endswith(".") else f"{said}.")
    return Recovered(*find_destination(_read_lines(data)[0]), why, "kept")


def _send_journal(path: Path, data: bytes, whole: Pass) -> Recovered | None:
    """Send one journal with this content, unless its job needs it no more, and remove it.

    Raises:
        DocumentError: When it is damaged, or its embedded store does not exist any more.
        ConnectionRefusedError: When nothing listens at its store, or the server failed before.
        Exception: Whatever MLflow raises when the store does not take it.
    """
    lines, _ = _read_lines(data[: data.find(b"\n") + 1])
    head = lines[0] if lines else {}
    spooled = find_spool(path.parent, head)
    if head.get("format") == FORMAT and head.get(REMOVED) is True:
        remove_journal(path, spooled)
        return None
    if not whole.of_any_host and not is_of_this_host(head):
        host = str(head.get("node", {}).get("hostname"))
        why = f"it is of another host, {host}, which may still be writing it"
        return Recovered(*find_destination(_read_lines(data)[0]), why, "other host")
    if (work := find_work(head)) is not None and (why := explain_unfinished(work)):
        return Recovered(*find_destination(_read_lines(data)[0]), why, "running")
    delivery, cause = read_journal(data, name=str(path), spooled=spooled, ended=whole.ended)
    run = delivery.run
    if whole.store and not is_same_store(run.tracking_uri, whole.store):
        return Recovered(run.run_id, delivery.index, "it goes to another store", "kept")
    uri = run.tracking_uri if whole.store else settle_store(run)
    if run.workspace is None:
        run.workspace = whole.workspace
    check_store(run)
    from mlflow.exceptions import RestException

    # Each journal of a server that hangs would take minutes.
    if uri in whole.away:
        raise ConnectionRefusedError(whole.away[uri])
    try:
        outcome, run_id = call_in_workspace(run, lambda: _deliver(delivery, path))
    except (RestException, MlflowPerfError):  # an answer, or a fault of the artifact store alone
        raise
    except Exception as error:
        if not is_http(uri) or is_refusal(error):
            raise
        whole.away[uri] = f"{redact_password(uri)} failed: {shorten(reason_of(error))}"
        raise ConnectionRefusedError(whole.away[uri]) from error
    remove_journal(path, spooled, sent_to=None if outcome == "not begun" else run_id)
    if run_id and outcome == "sent":
        whole.sent.setdefault(run.workspace, []).append((uri, run_id))
    return Recovered(run_id, delivery.index, cause, outcome)


def _deliver(delivery: Delivery, path: Path) -> tuple[str, str | None]:
    """Send what a journal has, unless its run has it; return the outcome and the run's id."""
    share_run(path, delivery)
    outcome = "known" if is_known(delivery, is_stand_in=is_stand_in(path)) else "sent"
    delivery.run.has_page = has_page(delivery.run.tracking_uri)
    has_figures = delivery.document.started is not None or delivery.document.summary
    if not has_figures and (ended := end_without_figures(delivery, path)) is not None:
        return ended
    return outcome, write_node(delivery) if outcome == "sent" else delivery.run.run_id
