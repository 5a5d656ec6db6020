"""What the processes of a group's steps note in a file of the group.

That is how long mlflow-perf itself took before and after a step, and whether the step reported to
another store. No request is made for it. At its end the group puts the times into tags of its run.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlflow_perf.core.file_patience import find_patience
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.tracking.perf_run import TAG

if TYPE_CHECKING:
    from mlflow_perf.tracking.delivery import Delivery
    from mlflow_perf.tracking.run_handle import RunHandle

REPORTING_TAG = f"{TAG}reporting_ms."
"""Start of the tags of a group's run with the notes on its steps."""

OWN_TAG = f"{TAG}own_reporting_ms"
"""Tag of a step's run with the note on it, for where the group does not get that note."""

_VARIABLE = "MLFLOW_PERF_GROUP_NOTES"
_OWN = re.compile(r"(\d{1,12}):(\d{1,12})")
_NOTE = re.compile(r"([0-9a-zA-Z_-]{1,12}):(\d{1,12}):(\d{1,12})")
_LINE = re.compile(r"^([0-9a-zA-Z_-]{1,12})" + 4 * r":(\d{1,14})" + "$", re.MULTILINE)
_APART = re.compile(r"^apart ([0-9a-zA-Z_-]{1,12})$", re.MULTILINE)
_ID_CHARS = 12
_NOTES_PER_TAG = 120
"""With 120 notes a tag stays below the 5,000 characters that every server takes."""

_MOST_NOTES = 25 * _NOTES_PER_TAG
"""Each tag is a request: of more notes, those that take the most time are kept."""


class Reporting(NamedTuple):
    """The time of mlflow-perf around one step.

    Attributes:
        before_sec: From the start of the process that wraps the step, or from where the step asked
            for its block, to the beginning of that block.
        after_sec: From the end of the block until its report was sent.
    """

    before_sec: float = 0.0
    after_sec: float = 0.0


@contextmanager
def gathering_notes(notes: Path) -> Iterator[None]:
    """Name a new file for notes to all processes that start in this block, which deletes it.

    The notes of a group inside another one are its steps', too, and so are passed on at the end.

    Args:
        notes: The file; where it cannot be made, the steps note nothing.
    """
    try:
        notes.touch(mode=0o600, exist_ok=False)
    except OSError:
        yield
        return
    outer = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(notes)
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        if outer is not None:
            os.environ[_VARIABLE] = outer
        find_patience(notes.parent).do(partial(_end_notes, notes, outer), None)


def _end_notes(notes: Path, outer: str | None) -> None:
    if outer is not None:
        with suppress(OSError):
            _append(outer, read_notes(notes))
    with suppress(OSError):
        notes.unlink()


def is_gathering() -> bool:
    """Return whether the group of this process is there, and has still to read its steps."""
    path = os.environ.get(_VARIABLE)
    return path is not None and os.path.isfile(path)  # noqa: PTH113 - a stale one is none


def note_reporting(run: RunHandle, document: PerfDocument | None, *, age_sec: float = 0.0) -> None:
    """Note in the group's file that a step's report is sent; without a group do nothing.

    Args:
        run: The step's run.
        document: The report of this process's node; None if it made none.
        age_sec: Age of the process that wraps the step; in the step's own process, since it asked
            for its block.
    """
    path, nodes = os.environ.get(_VARIABLE), document.nodes.values() if document else ()
    node = next(iter(nodes), None)
    run_id = run.run_id
    if not path or not run_id or not node or not node.started or node.duration_sec is None:
        return
    if run.is_apart:
        note_apart(run_id)
    now, ended = time.time(), node.started + node.duration_sec
    times = min(node.started, now - age_sec), node.started, ended, max(ended, now)
    # The group may be gone, or its file on another machine or outside of a container.
    with suppress(OSError):
        _append(path, ":".join((run_id[:_ID_CHARS], *(f"{1000 * t:.0f}" for t in times))) + "\n")


def note_own(delivery: Delivery, *, age_sec: float = 0.0, is_over: bool = False) -> None:
    """Note in a step's own tags what mlflow-perf took beside it; without a group do nothing.

    A step whose report is kept has no run yet that the group's file could name.

    Args:
        delivery: The step's report.
        age_sec: As for `note_reporting`.
        is_over: Whether mlflow-perf has given up sending the report now.
    """
    node = delivery.document
    if not os.environ.get(_VARIABLE) or not node.started or node.duration_sec is None:
        return
    now, old = time.time(), _OWN.fullmatch(delivery.tags.get(OWN_TAG, ""))
    before_sec = max(0.0, age_sec - (now - node.started)) if age_sec else 0.0
    before_ms = max(1000 * before_sec, int(old[1]) if old else 0)
    after_ms = max(0.0, 1000 * (now - node.started - node.duration_sec)) if is_over else 0.0
    # Not in place: a thread that still sends may read the old ones.
    delivery.tags = {**delivery.tags, OWN_TAG: f"{before_ms:.0f}:{after_ms:.0f}"}


def note_apart(run: str) -> None:
    """Note in the group's file that a step has a run in another store; without a group do nothing.

    Args:
        run: What the run has alone: its id, or a text where it is still to be created.
    """
    if path := os.environ.get(_VARIABLE):
        with suppress(OSError):  # as above
            _append(path, f"apart {run[:_ID_CHARS]}\n")


def note_group(text: str, *, before_sec: float, after_sec: float) -> None:
    """Note for the group around this one what this one took; without such a group do nothing.

    That group waited for it before the step that began first, and after the one that ended last.

    Args:
        text: The notes of this group's steps.
        before_sec: What this group took before its command.
        after_sec: What it took after its command.
    """
    outer, found = os.environ.get(_VARIABLE), _LINE.findall(text)
    if not outer or not found:
        return
    ident, began, *rest = min(found, key=lambda one: int(one[1]))
    first = (ident, f"{int(began) - 1000 * before_sec:.0f}", *rest)
    *rest, sent = max(found, key=lambda one: int(one[3]))
    last = (*rest, f"{int(sent) + 1000 * after_sec:.0f}")
    with suppress(OSError):  # as above
        _append(outer, "".join(f"{':'.join(line)}\n" for line in (first, last)))


def count_apart(text: str) -> int:
    """Return how many runs the steps of a group noted in another store than the group's."""
    return len(set(_APART.findall(text)))


def read_notes(notes: Path) -> str:
    """Return the notes of a group's steps; empty where there are none."""
    try:
        return notes.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _append(path: str, text: str) -> None:
    """Append in one write, because other steps append at the same time; to no deleted file."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def tag_notes(text: str) -> dict[str, str]:
    """Return the tags of a group's run with the notes of its steps; none without notes.

    Each node of a step has noted when its process began, when its block began and ended, and when
    its report was sent. The step's block is that of all nodes: what a node took while another one
    still worked kept nobody waiting.
    """
    found: dict[str, tuple[int, int, int, int]] = {}
    for ident, *texts in _LINE.findall(text):
        began, begin, end, sent = map(int, texts)
        old = found.get(ident, (began, begin, end, sent))
        found[ident] = min(began, old[0]), min(begin, old[1]), max(end, old[2]), max(sent, old[3])
    taken = [(i, begin - began, sent - end) for i, (began, begin, end, sent) in found.items()]
    if len(taken) > _MOST_NOTES:
        taken = sorted(taken, key=lambda one: -one[1] - one[2])[:_MOST_NOTES]
    words = [f"{ident}:{max(0, before)}:{max(0, after)}" for ident, before, after in taken]
    chunks = (words[i : i + _NOTES_PER_TAG] for i in range(0, len(words), _NOTES_PER_TAG))
    return {f"{REPORTING_TAG}{i}": " ".join(chunk) for i, chunk in enumerate(chunks)}


class ReportingNotes:
    """The notes on the steps of a group.

    Args:
        tags: Of the group's run.
        steps: The runs of the steps, each with its id and tags.
    """

    def __init__(
        self, tags: Mapping[str, str], steps: Iterable[tuple[str, Mapping[str, str]]] = ()
    ) -> None:
        self._found: dict[str, Reporting] = {}
        for text in (text for key, text in tags.items() if key.startswith(REPORTING_TAG)):
            for ident, before, after in _NOTE.findall(text):
                new, old = (int(before) / 1000, int(after) / 1000), self._found.get(ident, (0, 0))
                # An earlier version noted each node of a step.
                self._found[ident] = Reporting(*map(max, new, old))

        for run_id, of_step in steps:
            if found := _OWN.fullmatch(of_step.get(OWN_TAG, "")):
                own = Reporting(*(int(part) / 1000 for part in found.groups()))
                self._found.setdefault(run_id[:_ID_CHARS], own)

    def is_whole(self, run_id: str | None) -> bool:
        """Return whether the note on a step is there, and says how long its report took."""
        return self.find(run_id).after_sec > 0

    def find(self, run_id: str | None) -> Reporting:
        """Return the note on a step by its run; zeros where there is none."""
        return self._found.get((run_id or "")[:_ID_CHARS], Reporting())
