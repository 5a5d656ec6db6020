"""The lines of a Work Queue transaction log, taken apart a few megabytes at a time.

May import spans.bulk. A regular expression on each of a million lines takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlflow_perf.spans.bulk import Ints

__all__ = ["Lines", "take_apart"]

_DIGITS = 18
_WORD = 32
_PRIME = np.uint64(0x100000001B3)
_NEWLINE, _SPACE, _ZERO = 10, 32, 48

_Marks = npt.NDArray[np.uint64]
_Mask = npt.NDArray[np.bool_]
_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Lines:
    """What some lines say of tasks, and the lines that say something else.

    Attributes:
        time: The Unix microseconds of each line on a task or a transfer.
        task: The number of its task.
        event: The place of its event in `words`.
        words: The events: a state, or `TRANSFER_` and what is transferred.
        running: The lines on tasks that began to run, which name their worker.
        others: The lines of any other shape.
    """

    time: Ints
    task: Ints
    event: Ints
    words: list[bytes]
    running: list[bytes]
    others: list[bytes]


def take_apart(part: bytes) -> Lines:
    """Take apart some whole lines: `<time> <process> TASK|TRANSFER <word> <word> …`."""
    data = np.frombuffer(part, dtype=np.uint8)
    end = np.flatnonzero(data == _NEWLINE)
    start = np.concatenate([np.zeros(min(1, len(end)), dtype=np.int64), end[:-1] + 1])
    tokens = _Tokens(data, start, end)
    time, is_time = tokens.numbers(0)
    kind = tokens.marks(2)
    is_task, is_transfer = kind == _mark(b"TASK"), kind == _mark(b"TRANSFER")
    # A task's line names the task, then its state; a transfer's what it is, then the task.
    (left, is_left), (right, is_right) = tokens.numbers(3), tokens.numbers(4)
    named = (is_task & is_left) | (is_transfer & is_right)
    left_mark, right_mark = tokens.marks(3), tokens.marks(4)
    word = np.where(is_task, right_mark, left_mark ^ kind)
    good = is_time & tokens.numbers(1)[1] & named & (left_mark != 0) & (right_mark != 0)
    _, first, event = np.unique(word[good], return_index=True, return_inverse=True)
    at = np.flatnonzero(good)
    words = [
        tokens.word(line, 4) if is_task[line] else b"TRANSFER_" + tokens.word(line, 3)
        for line in at[first].tolist()
    ]
    running = at[is_task[good] & (word[good] == _mark(b"RUNNING"))]
    task = np.where(is_task, left, right)[good]
    return Lines(
        time[good],
        task,
        event.astype(np.int64),
        words,
        list(_texts(part, start[running], end[running])),
        list(_texts(part, start[~good], end[~good])),
    )


class _Tokens:
    """Where the words of each line stand, which one blank parts from the next."""

    def __init__(self, data: _Bytes, start: Ints, end: Ints) -> None:
        self._data = data
        self._blank = np.flatnonzero(data <= _SPACE)
        self._first = np.searchsorted(self._blank, start)
        self._start = start
        self._end = end

    def bounds(self, number: int) -> tuple[Ints, Ints]:
        """Return where a word begins and ends in each line; the same where it is not there."""
        last = len(self._blank) - 1
        stop = np.minimum(self._blank[np.minimum(self._first + number, last)], self._end)
        if not number:
            return self._start, stop
        begin = self._blank[np.minimum(self._first + number - 1, last)] + 1
        return np.minimum(begin, stop), stop

    def numbers(self, number: int) -> tuple[Ints, _Mask]:
        """Return a word of each line as a number, and whether it is one."""
        begin, stop = self.bounds(number)
        length = stop - begin
        good = (length > 0) & (length <= _DIGITS)
        value = np.zeros(len(begin), dtype=np.int64)
        for place in range(min(_DIGITS, int(length.max(initial=0)))):
            inside = place < length
            digit = self._data[np.minimum(begin + place, stop)].astype(np.int64) - _ZERO
            good &= ~inside | ((digit >= 0) & (digit <= 9))
            value = np.where(inside, value * 10 + digit, value)
        return value, good

    def marks(self, number: int) -> _Marks:
        """Return 64 bits that tell a word of each line from others; 0 where it is missing."""
        begin, stop = self.bounds(number)
        length = stop - begin
        mark: _Marks = (length > 0).astype(np.uint64)
        for place in range(min(_WORD, int(length.max(initial=0)))):
            char = self._data[np.minimum(begin + place, stop)].astype(np.uint64)
            mark = np.where(place < length, (mark + char) * _PRIME, mark)
        mark[length > _WORD] = 0
        return mark

    def word(self, line: int, number: int) -> bytes:
        """Return a word of a line."""
        begin, stop = self.bounds(number)
        return self._data[begin[line] : stop[line]].tobytes()


def _mark(word: bytes) -> int:
    """Return what `marks` gives for a word."""
    mark = 1
    for char in word:
        mark = (mark + char) * int(_PRIME) & 0xFFFFFFFFFFFFFFFF
    return mark


def _texts(part: bytes, start: Ints, end: Ints) -> Iterator[bytes]:
    return (part[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True))
