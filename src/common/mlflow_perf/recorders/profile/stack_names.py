"""Gives a stack its functions, once for each stack that is found."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import CodeType

from mlflow_perf.model.samples import Sample
from mlflow_perf.recorders.profile.awaiting import list_awaiting
from mlflow_perf.recorders.profile.frames import FrameNames
from mlflow_perf.recorders.profile.stacks import Place, find_line
from mlflow_perf.recorders.profile.watched import Key

_MOST_KEYS = 5_000


class StackNames:
    """Names stacks, and remembers the names."""

    def __init__(self) -> None:
        self._names = FrameNames()
        self._known: dict[Key, Sample] = {}
        self._inner: dict[bytes, int] = {}
        self._lines: dict[tuple[int, int], int] = {}
        self._kept_codes: dict[int, CodeType] = {}

    def name(self, ident: int, places: Sequence[Place], root: str) -> tuple[Key, Sequence[Sample]]:
        """Return what identifies a stack, and its samples: several for several coroutines.

        Args:
            ident: The thread's ident.
            places: Its stack, the innermost frame first; not empty.
            root: The root above it.
        """
        codes = [code for code, _ in places]
        # As bytes, the numbers of a deep stack take a fifth of the memory.
        stack = array("Q", map(id, codes)).tobytes()
        inner = self._inner.get(stack)
        if inner is None:
            inner = self._inner[stack] = self._names.find_innermost(codes)
        place = id(codes[inner]), places[inner][1]
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = find_line(places[inner])
        key: Key = (line, stack)
        sample = self._known.get(key)
        if sample is None:
            sample = Sample(root, line, tuple(self._names.list_functions(codes)))
            # The codes are kept with the key, because Python reuses the id of a deleted object.
            if len(self._known) >= _MOST_KEYS:
                for kept in (self._known, self._lines, self._inner, self._kept_codes):
                    kept.clear()
            self._known[key] = sample
            self._kept_codes.update((id(code), code) for code in codes)
        path = sample.path
        if path and self._names.is_of_loop(path[-1]):
            chains = list_awaiting(ident)
            outside = tuple(one for one in path if not self._names.is_of_loop(one))
            waiting = [tuple(self._names.list_functions(chain)) for chain in chains]
            if waiting:
                samples = tuple(Sample(root, 0, (*outside, *chain)) for chain in waiting)
                return (*key, *map(hash, samples)), samples
        return key, (sample if sample.root == root else sample._replace(root=root),)
