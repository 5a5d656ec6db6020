"""Collect the records of a job's processes from the session's spool folder."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.model.samples import RawStacks
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.operations import operation_spool
from mlflow_perf.recorders.operations.keys import unjson_key
from mlflow_perf.recorders.operations.metrics import OperationMetrics
from mlflow_perf.recorders.profile import stack_spool
from mlflow_perf.recorders.record_spool import SpooledRecorder
from mlflow_perf.recorders.steps import metrics as steps
from mlflow_perf.recorders.steps.metrics import StepMetrics
from mlflow_perf.recorders.steps.stats import LoopRecord
from mlflow_perf.recorders.transfers import stats as transfers
from mlflow_perf.recorders.transfers.stats import NixlKVConnectorStats

_UNREADABLE = (
    MlflowPerfError, ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error
)  # fmt: skip
_MESSAGE = "The records of process %s cannot be read: %s"
_logger = get_logger(__name__)


def collect_operations(folder: Path, into: OperationMetrics) -> None:
    """Add what each process has recorded so far, each process once.

    A second call adds only the records of new processes. Damaged files are left out with one
    warning.

    Args:
        folder: The spool folder; may be gone.
        into: The session's recorder, which remembers the processes that it has.
    """
    _merge_files(folder, operation_spool.KIND, into, _replay_operations)


def collect_steps(folder: Path | None, into: StepMetrics) -> None:
    """Add the steps that each process has recorded so far, as `collect_operations` does."""
    if folder is not None:
        _merge_files(folder, steps.KIND, into, _replay_steps)


def _merge_files(
    folder: Path, kind: str, into: SpooledRecorder, replay: Callable[[spool.SpoolFile], Any]
) -> None:
    for file in spool.read(folder, kind):
        try:
            into.merge_from(file.source, partial(replay, file))
        except _UNREADABLE as error:
            _logger.warning(_MESSAGE, file.source, error)


def _replay_operations(file: spool.SpoolFile) -> OperationMetrics:
    recorder = OperationMetrics.from_dict(file.snapshot)
    named: dict[int, tuple[str, Any]] = {}
    for record in file.records:
        match record.kind:
            case operation_spool.NAME_TIME | operation_spool.NAME_COUNT:
                name, key = json.loads(record.blob)
                named[record.ident] = name, unjson_key(key)
            case operation_spool.TIME:
                recorder.add_past_time(*named[record.ident], record.a, record.b)
            case operation_spool.COUNT:
                value = int(record.a) if record.b else record.a
                recorder.add_counter(*named[record.ident], value)
            case operation_spool.BIG_COUNT:
                recorder.add_counter(*named[record.ident], int(record.blob))
            case operation_spool.ATTRIBUTE:
                name, key, attribute = json.loads(record.blob)
                recorder.add_attribute(name, unjson_key(key), attribute)
    return recorder


def _replay_steps(file: spool.SpoolFile) -> StepMetrics:
    recorder = StepMetrics.from_dict(file.snapshot)
    for record in file.records:
        if record.kind == steps.PIECE:
            name, rank, piece = json.loads(record.blob)
            recorder.add(str(name), LoopRecord.from_dict(piece), int(rank))
    return recorder


def collect_stacks(folder: Path, *, but: str | None = None) -> list[RawStacks]:
    """Return what each process has sampled so far, but for the source `but`: this process."""
    found = []
    for file in spool.read(folder, stack_spool.KIND):
        try:
            found += [stack_spool.read_stacks(file)] if file.source != but else []
        except _UNREADABLE as error:
            _logger.warning(_MESSAGE, file.source, error)
    return found


def collect_transfers(
    folder: Path | None, own: Mapping[str, NixlKVConnectorStats] | None = None
) -> dict[str, NixlKVConnectorStats]:
    """Return the sums of all processes' transfers by name; `own` has those of this process."""
    own = own or {}
    sums = {name: NixlKVConnectorStats().aggregate(stats) for name, stats in own.items()}
    sources = {stats.source for stats in own.values()}
    for file in () if folder is None else spool.read(folder, transfers.KIND):
        if file.source in sources:
            continue
        try:
            stats = NixlKVConnectorStats(file.snapshot["stats"])
            for record in file.records:
                if record.kind == transfers.TRANSFER:
                    stats.record_figures(transfers.RECORD.unpack(record.blob))
                elif record.kind == transfers.COUNT:
                    stats.record_count(record.ident)
        except _UNREADABLE as error:
            _logger.warning(_MESSAGE, file.source, error)
            continue
        name = str(file.snapshot.get("name"))
        sums.setdefault(name, NixlKVConnectorStats()).aggregate(stats)
    return {name: stats for name, stats in sums.items() if not stats.is_empty()}
