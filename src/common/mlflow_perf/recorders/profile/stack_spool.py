"""The spool file of a process's samples: how they are written and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.plain_json import dumps, loads
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.samples import Function, RawStacks, Sample
from mlflow_perf.recorders.record_spool import RecordSpool
from mlflow_perf.recorders.spool import BLOB, SpoolFile

if TYPE_CHECKING:
    from pathlib import Path

KIND = "stacks"
"""First part of the names of these files."""

_TIME = 99
_NO_SAMPLE = 98
_MOST_COUNT = 90
_STACK = BLOB
_STEP_SEC = 0.1


class StackSpool(RecordSpool):
    """Writes each sample into a spool file.

    A record is wall and CPU seconds of a stack, and its kind the number of samples, or that they
    belong to one before. Records before it say what the stack is, and the time.

    Args:
        folder: Spool folder.
        snapshot: Returns everything sampled so far.
        is_asked: Whether the process itself asked to be sampled, so that it is told of a fault.
    """

    def __init__(
        self,
        folder: Path | str,
        snapshot: Callable[[], dict[str, Any]],
        *,
        is_asked: bool = True,
    ) -> None:
        super().__init__(folder, KIND, "Stack samples", snapshot)
        self._at, self._is_asked = 0.0, is_asked

    def give_up(self, error: Exception) -> None:
        """Write nothing more, and say so where the process asked to be sampled.

        Below a session, each Python process in a sandbox or beside a full disk would say so, and
        whoever reads its errors would take that for its own. The session says that a disk is full.
        """
        if self._is_asked or is_from_handler(error):
            super().give_up(error)
        else:
            self.close()

    def add(
        self,
        stack: int,
        at: float,
        *,
        wall: float,
        cpu: float,
        count: int,
        sample: Sample | None,
    ) -> None:
        """Write a sample that is in the window already.

        Args:
            stack: Number of the stack.
            at: Unix time.
            wall: Seconds of wall time.
            cpu: Seconds of CPU time.
            count: How many samples found it.
            sample: The stack itself, if it is new.
        """
        writer = self._writer
        if writer is None:
            self.write_all()
            return
        try:
            # A new file begins with everything, so that nothing more is to be written.
            begun = writer.begun
            writer.look()
            if writer.begun == begun and sample is not None:
                text = dumps([sample.root, sample.line, [list(one) for one in sample.path]])
                writer.append_blob(_STACK, stack, text.encode())
            if writer.begun == begun and abs(at - self._at) > _STEP_SEC:
                self._at = at
                writer.append(_TIME, 0, at, 0.0)
            while writer.begun == begun and count > _MOST_COUNT:
                writer.append(_MOST_COUNT, stack, 0.0, 0.0)
                count -= _MOST_COUNT
            if writer.begun == begun:
                writer.append(count or _NO_SAMPLE, stack, wall, cpu)
        except Exception as error:  # noqa: BLE001 - never the job's
            self.give_up(error)


def read_stacks(file: SpoolFile) -> RawStacks:
    """Return what a process had sampled when it ended, or was killed.

    Raises:
        DocumentError: If the file holds something else.
        ValueError: Likewise, and `KeyError`, `TypeError`, `IndexError`.
    """
    data = file.snapshot
    raw = RawStacks(
        [Function(str(n), str(f), int(line), bool(lib)) for n, f, line, lib in data["functions"]],
        [(str(root), int(line), tuple(map(int, path))) for root, line, path in data["stacks"]],
        [
            (float(at), float(length), int(stack), float(wall), float(cpu), int(count))
            for at, length, stack, wall, cpu, count in data["cells"]
        ],
        None if data["rate_hz"] is None else float(data["rate_hz"]),
    )
    numbers = {function: i for i, function in enumerate(raw.functions)}
    named = dict(enumerate(raw.stacks))
    at = 0.0
    for record in file.records:
        if record.kind == _STACK:
            root, line, path = loads(record.blob)
            functions = [Function(str(n), str(f), int(l1), bool(lib)) for n, f, l1, lib in path]
            ids = tuple(numbers.setdefault(one, len(numbers)) for one in functions)
            named[record.ident] = str(root), int(line), ids
        elif record.kind == _TIME:
            at = record.a
        else:
            count = 0 if record.kind == _NO_SAMPLE else record.kind
            raw.cells.append((at, 0.0, record.ident, record.a, record.b, count))
    stacks = [named.get(i, ("", 0, ())) for i in range(max(named, default=-1) + 1)]
    known = all(0 <= one < len(numbers) for _, _, path in stacks for one in path)
    if not known or any(not 0 <= cell[2] < len(stacks) for cell in raw.cells):
        raise DocumentError("It names a function or a stack that it does not explain.")
    return raw._replace(functions=list(numbers), stacks=stacks)
