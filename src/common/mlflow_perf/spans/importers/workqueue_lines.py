"""The lines of a Work Queue transaction log, taken apart a few megabytes at a time.

May import spans.bulk. A regular expression on each of a million lines takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlflow_perf.spans.database.bulk import Ints

__all__ = ["Lines", "take_apart"]

_DIGITS = 18
# An IPv6 address and its port take 47.
_WORD = 64
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
        started: The number of each task that began to run.
        address: The place in `addresses` of where it did.
        addresses: The addresses of workers; an empty one stands for what is none.
        others: The lines of any other shape.
    """

    time: Ints
    task: Ints
    event: Ints
    words: list[bytes]
    started: Ints
    address: Ints
    addresses: list[bytes]
    others: list[bytes]


def take_apart(part: bytes) -> Lines:
    """Take apart some whole lines: `<time> <process> TASK|TRANSFER <word> <word> …`."""
    data = np.frombuffer(part, dtype=np.uint8)
    end = np.flatnonzero(data == _NEWLINE)
    start = np.concatenate([np.zeros(min(1, len(end)), dtype=np.int64), end[:-1] + 1])
    tokens = _Tokens(data, start, end)
    time, is_time = tokens.numbers(*tokens.bounds(0))
    kind = tokens.marks(*tokens.bounds(2))
    is_task, is_transfer = kind == _mark(b"TASK"), kind == _mark(b"TRANSFER")
    # A task's line names the task, then its state; a transfer's what it is, then the task.
    third, fourth = np.stack(tokens.bounds(3)), np.stack(tokens.bounds(4))
    task, is_number = tokens.numbers(*np.where(is_task, third, fourth))
    at_word = np.where(is_task, fourth, third)
    word = tokens.marks(*at_word)
    good = is_time & tokens.numbers(*tokens.bounds(1))[1] & is_number & (word != 0)
    good &= is_task | is_transfer
    line = np.flatnonzero(good)
    # The kind too, so that a state is never taken for what is transferred.
    words, event = _different(tokens, word[line] + is_transfer[line], at_word[:, line])
    first = np.unique(event, return_index=True)[1]
    moved = is_transfer[line][first].tolist()
    words = [b"TRANSFER_" + w if m else w for w, m in zip(words, moved, strict=True)]
    running = line[is_task[line] & (word[line] == _mark(b"RUNNING"))]
    at_address = np.stack(tokens.bounds(5))[:, running]
    addresses, address = _different(tokens, tokens.marks(*at_address), at_address)
    return Lines(
        time[line],
        task[line],
        event,
        words,
        task[running],
        address,
        addresses,
        list(_texts(part, start[~good], end[~good])),
    )


def _different(tokens: _Tokens, marks: _Marks, bounds: Ints) -> tuple[list[bytes], Ints]:
    """Return the different words among some, and the place of each word among them."""
    different, first, place = np.unique(marks, return_index=True, return_inverse=True)
    words = [
        tokens.text(*bounds[:, at].tolist()) if mark else b""
        for mark, at in zip(different.tolist(), first.tolist(), strict=True)
    ]
    return words, place.astype(np.int64)


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

    def numbers(self, begin: Ints, stop: Ints) -> tuple[Ints, _Mask]:
        """Return words as numbers, and whether they are such."""
        length = stop - begin
        good = (length > 0) & (length <= _DIGITS)
        value = np.zeros(len(begin), dtype=np.int64)
        for at, char in self._chars(begin, length, good):
            digit = char - _ZERO  # below "0" wraps round to what is large
            good[at] &= digit <= 9
            value[at] = value[at] * 10 + digit
        return value, good

    def marks(self, begin: Ints, stop: Ints) -> _Marks:
        """Return 64 bits that tell a word from others; 0 for none and for one that is too long."""
        length = stop - begin
        good = (length > 0) & (length <= _WORD)
        mark: _Marks = good.astype(np.uint64)
        for at, char in self._chars(begin, length, good):
            mark[at] = (mark[at] + char) * _PRIME
        return mark

    def _chars(
        self, begin: Ints, length: Ints, which: _Mask
    ) -> Iterator[tuple[Ints | slice, _Bytes]]:
        """Yield the words' first characters, then their second: whose they are, and what."""
        if which.all() and len(length) and length.min() == length.max():
            for place in range(int(length[0])):
                yield slice(None), self._data[begin + place]
            return
        at, place = np.flatnonzero(which), 0
        while len(at):
            yield at, self._data[begin[at] + place]
            place += 1
            at = at[length[at] > place]

    def text(self, begin: int, stop: int) -> bytes:
        """Return a word."""
        return self._data[begin:stop].tobytes()


def _mark(word: bytes) -> int:
    """Return what `marks` gives for a word."""
    mark = 1
    for char in word:
        mark = (mark + char) * int(_PRIME) & 0xFFFFFFFFFFFFFFFF
    return mark


def _texts(part: bytes, start: Ints, end: Ints) -> Iterator[bytes]:
    return (part[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True))
