"""Names the functions on a stack, and leaves out frames that only connect them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from types import CodeType
from typing import Any

from mlflow_perf.core.originals import os
from mlflow_perf.model.samples import Function

_PACKAGE = f"{__file__.rsplit(os.sep, 3)[0]}{os.sep}"
_OF_SESSION = f"{_PACKAGE}session{os.sep}"  # nothing of the job's is called from there
_OF_TESTS = f"{_PACKAGE}selftest{os.sep}"  # its loads are a job
_STDLIB = f"{os.__file__.rpartition(os.sep)[0]}{os.sep}"
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
_NOTEBOOK = re.compile(r"ipykernel_\d+|<ipython-input-(\d+)-")
# Before Python 3.12 a comprehension has a frame of its own.
_INLINED = {"<listcomp>", "<setcomp>", "<dictcomp>"}
_LOOPS = ("asyncio/", "selectors.py", "uvloop/")
_MOST_DEPTH = 120
_MOST_FUNCTIONS = 20_000
_ELSEWHERE = Function("(deeper functions)", "", 0, True)


class FrameNames:
    """Gives each code object its function; no source text, argument or value is looked at."""

    def __init__(self) -> None:
        # By id, because two codes are equal if only their files differ. Each code is kept, because
        # Python reuses the id of a deleted object.
        self._functions: dict[int, tuple[CodeType, Function | None]] = {}
        try:
            self._folder = f"{os.getcwd()}{os.sep}"
        except OSError:  # it was deleted, and no file is in it
            self._folder = "\0"

    def list_functions(self, codes: Iterable[CodeType]) -> list[Function]:
        """Return the functions of a stack from the outermost to the innermost.

        The frames of the import system, of the event loop and of mlflow-perf are left out, with
        what a block's begin and end call, and of a function that calls itself at once there is one.

        Args:
            codes: The code of each frame, the innermost first.
        """
        return self._shorten_path([function for _, function in self._find_named(codes)])

    def find_innermost(self, codes: Iterable[CodeType]) -> int:
        """Return the place of the innermost frame that `list_functions` does not leave out.

        Of a comprehension, whose frame is its function's, it is the comprehension's place.
        """
        named = self._find_named(codes)
        return named[0][0] if named else 0

    def _find_named(self, codes: Iterable[CodeType]) -> list[tuple[int, Function]]:
        found: list[tuple[int, Function]] = []
        inlined = None
        for i, code in enumerate(codes):
            try:
                function = self._functions[id(code)][1]
            except KeyError:
                name = getattr(code, "co_qualname", code.co_name)
                function = self.name_function(name, code.co_filename, code.co_firstlineno)
                if len(self._functions) < _MOST_FUNCTIONS:
                    self._functions[id(code)] = code, function
            if function is None and code.co_filename.startswith(_OF_SESSION):
                # A lock that we wait for, a file that we read.
                found = [one for one in found if not one[1].is_library]
            if function is not None and (not found or found[-1][1] != function):
                found.append((i if inlined is None else inlined, function))
            if function is not None or code.co_name not in _INLINED:
                inlined = None
            elif inlined is None:
                inlined = i
        return found

    def name_all(self, frames: Iterable[tuple[str, str, int]]) -> tuple[Function, ...]:
        """Return the functions of a stack of which only names are known, as `list_functions` does.

        Args:
            frames: Qualified name, file and first line of each frame, the innermost first.
        """
        found: list[Function] = []
        for frame in frames:
            function = self.name_function(*frame)
            if function is not None and (not found or found[-1] != function):
                found.append(function)
        return tuple(self._shorten_path(found))

    def _shorten_path(self, found: list[Function]) -> list[Function]:
        """Return a stack from the outermost function on, without its loop and of bounded depth."""
        if len(found) > _MOST_DEPTH:
            half = _MOST_DEPTH // 2
            found = [*found[:half], _ELSEWHERE, *found[-half:]]
        found.reverse()
        # What the loop itself does between two coroutines is no part of their stack.
        inner = found and found[-1]
        return [one for one in found if one is inner or not self.is_of_loop(one)]

    @staticmethod
    def is_of_loop(function: Function) -> bool:
        """Return whether a function belongs to an event loop."""
        return function.is_library and function.file.startswith(_LOOPS)

    def name_function(self, name: str, file: str, line: int) -> Function | None:
        """Return a function by its qualified name, file and line; None if it is left out."""
        # Of a function within a function only the last part of its name is known to the reader.
        name = name.rpartition("<locals>.")[2]
        is_ours = file.startswith(_PACKAGE) and not file.startswith(_OF_TESTS)
        if name in _INLINED or file.startswith("<frozen importlib") or is_ours:
            return None
        short, is_library = self._shorten(file)
        if name == "<module>" and short.startswith("cell "):
            name = short
        return Function(name, short, line, is_library)

    def _shorten(self, file: str) -> tuple[str, bool]:
        """Return a file relative to its package or the working folder, and whether it is a library.

        Nothing of the path before that is kept: it may name a user or a customer.
        """
        if found := _NOTEBOOK.search(file):
            number = found[1] or _find_cell(file)
            return f"cell {number}" if number is not None else "cell", False
        if file.startswith("<"):
            return file, file.startswith("<frozen")
        installed = _INSTALLED.match(file)
        if installed:
            return file[installed.end() :], True
        if file.startswith(_STDLIB):
            return file[len(_STDLIB) :], True
        folders = (f"{part}{os.sep}" for part in sys.path if part not in ("", os.sep))
        for folder in (self._folder, *sorted(folders, key=len, reverse=True)):
            if file.startswith(folder):
                return file[len(folder) :], False
        is_relative = not file.startswith((os.sep, "..")) and ":" not in file
        return file if is_relative else os.path.basename(file), False


def _find_cell(file: str) -> int | None:
    """Return the number of the notebook's cell that a file's name stands for, if IPython knows."""
    module: Any = sys.modules.get("IPython.core.interactiveshell")
    shell = getattr(getattr(module, "InteractiveShell", None), "_instance", None)
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", None)
    number = numbers.get(file) if isinstance(numbers, dict) else None
    return number if isinstance(number, int) else None
