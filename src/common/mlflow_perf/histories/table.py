"""Read tables with a heading line, and the units in which other systems write their figures."""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn, TextIO

from mlflow_perf.core.foreign_files import open_foreign
from mlflow_perf.core.format import format_count
from mlflow_perf.errors import SettingError

_MISSING = frozenset({"", "-", "--", "NA", "N/A", "None", "null", "Unknown", "INVALID"})
_SIZE = re.compile(r"(-?[\d.,]+(?:[eE][+-]?\d+)?)\s*([KMGTPE]?)(i?)B?(?:[nc])?", re.IGNORECASE)
_SPAN = re.compile(r"([\d.,]+)\s*(ms|d|h|m|s)\b")
_GROUPED = re.compile(r"-?\d{1,3}(,\d{3})+")
_LINE_END = re.compile(r"\r\n|\r|\n")
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_UNIT_SEC = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LARGEST = 1e18
_LONGEST_LINE = 1_000_000
_MOST_MB = 4096
_OTHER_MARKS = {  # that of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_LONGEST_SEC = 1e10  # three centuries; MLflow's store takes no time beyond the 64-bit integers
# From 2000, which is before any of these systems, to the end of the year 9999. A moment that is not
# known may be written as 0, which is 1970.
_EARLIEST_SEC, _LATEST_SEC = 946684800.0, 253402300799.0


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        where: The file and the line, to begin a message with.
        cells: Text by the name of the column.
    """

    where: str
    cells: Mapping[str, str]

    def text(self, *names: str) -> str:
        """Return the first of these columns that has a value; empty if none has."""
        found = (self.cells.get(name, "").strip() for name in names)
        return next((text for text in found if text not in _MISSING), "")

    def number(self, *names: str) -> float | None:
        """Return a plain number, or a percentage without its sign; None if it is missing."""
        text = self.text(*names)
        return self._check(text.removesuffix("%"), names) if text else None

    def size_mb(self, *names: str, unit: str = "") -> float | None:
        """Return a size such as `1.2 GB` in MB of 2^20 bytes; None if it is missing.

        Args:
            names: Columns.
            unit: The unit of a plain number: empty for bytes, else `K`, `M` and so on.
        """
        text = self.text(*names)
        if not text:
            return None
        match = _SIZE.fullmatch(text)
        if match is None:
            self._refuse(names)
        power = _POWERS[(match[2] or unit).upper()]
        return self._check(match[1], names) * 1024.0**power / 2**20

    def seconds(self, *names: str, unit_sec: float = 1.0) -> float | None:
        """Return a time span: `3m 20s`, `1-02:03:04`, `02:03.5` or a number; None if missing.

        Args:
            names: Columns.
            unit_sec: Seconds of the unit of a plain number.
        """
        text = self.text(*names)
        if not text:
            return None
        if clock := _CLOCK.fullmatch(text):
            days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
            span = days * 86400 + hours * 3600 + minutes * 60 + seconds
        elif _SPAN.sub("", text).strip() == "":
            span = sum(
                self._check(value, names) * _UNIT_SEC[unit] for value, unit in _SPAN.findall(text)
            )
        else:
            span = self._check(text, names) * unit_sec
        if span > _LONGEST_SEC:
            self._refuse(names)
        return span

    def time(self, *names: str, unit_sec: float = 1.0) -> float | None:
        """Return a moment as Unix time: a date in this machine's time zone, or a number."""
        text = self.text(*names)
        if not text:
            return None
        try:
            is_date = "-" in text
            moment = datetime.fromisoformat(text).timestamp() if is_date else float(text) * unit_sec
        except (ValueError, OverflowError, OSError):
            self._refuse(names)
        if not moment <= _LATEST_SEC:
            self._refuse(names)
        if moment < _EARLIEST_SEC:
            raise SettingError(f"{self.quote(*names)}, which is before the year 2000.")
        return moment

    def quote(self, *names: str) -> str:
        """Return the place and the text of the first of these columns that has a value."""
        text = self.text(*names)
        name = next(name for name in names if self.cells.get(name, "").strip() == text)
        return f"{self.where}: {name} is {text!r}"

    def _check(self, number: str, names: Sequence[str]) -> float:
        try:
            value = float(_normalise(number))
        except ValueError:
            value = math.nan
        if not 0 <= value <= _LARGEST:
            self._refuse(names)
        return value

    def _refuse(self, names: Sequence[str]) -> NoReturn:
        raise SettingError(f"{self.quote(*names)}, which cannot be read.")


def _normalise(number: str) -> str:
    """Return a number without commas: `1,234.5` and `1,234` group by them, `1,5` and `1.234,5` not.

    Programs write in the language of their user, and the file does not name it.
    """
    if number.rfind(",") > number.rfind(".") and not _GROUPED.fullmatch(number):
        return number.replace(".", "").replace(",", ".")
    return number.replace(",", "")


@dataclass(frozen=True)
class Table:
    """A file with a heading line.

    Attributes:
        path: The file.
        header: Names of the columns.
        delimiter: What separates them.
    """

    path: Path
    header: tuple[str, ...]
    delimiter: str

    def rows(self, repair: Callable[[list[str]], list[str]] = lambda cells: cells) -> Iterator[Row]:
        """Yield the lines below the heading.

        Args:
            repair: Joins the cells of a line whose texts hold the separator.

        Raises:
            SettingError: A line has not as many cells as the heading, has no end, or is no text in
                UTF-8.
        """
        with _open_text(self.path) as file:
            read = _Lines(file)
            # Only tables with commas quote their cells; elsewhere a quote is part of a name.
            lines = csv.reader(
                read,
                delimiter=self.delimiter,
                quoting=csv.QUOTE_MINIMAL if self.delimiter == "," else csv.QUOTE_NONE,
            )
            try:
                next(lines)
                for found in lines:
                    where = f"{self.path}, line {lines.line_num}"
                    if not any(found):
                        continue
                    cells = repair(found) if len(found) > len(self.header) else found
                    if len(cells) != len(self.header):
                        count, wanted = len(cells), len(self.header)
                        cut = "the line may be cut off, or a text hold a line end"
                        held = f"a text may hold the separator {self.delimiter!r}"
                        raise SettingError(
                            f"{where}: {format_count(count, 'cell')} below {wanted} headings; "
                            f"{cut if count < wanted else held}."
                        )
                    # Where each line ends with the separator, a last column has no name.
                    if not read.is_ended and (last := self.header[-1]):
                        raise SettingError(
                            f"{where}: {last} may be cut off, as the line has no end; if it is "
                            "whole, add one."
                        )
                    yield Row(where, dict(zip(self.header, cells, strict=True)))
            except UnicodeDecodeError as error:
                raise SettingError(_explain_bad_byte(self.path)) from error
            except csv.Error as error:
                where = f"{self.path}, line {lines.line_num + 1}"
                raise SettingError(f"{where}: cannot be read: {error}.") from error


def _open_text(path: Path) -> TextIO:
    return io.TextIOWrapper(open_foreign(path, most_mb=_MOST_MB), "utf-8-sig", newline="")


def _explain_bad_byte(path: Path) -> str:
    """Return the message on a file that is no text in UTF-8, with the place of its first bad byte.

    The file is read again: it was decoded in blocks, which do not tell the line.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line, before = 1, 0
    with open_foreign(path, most_mb=_MOST_MB) as file:
        head = file.read(4)
        file.seek(0)
        for mark, name in _OTHER_MARKS.items():
            if head.startswith(mark):
                return f"{path}, line 1: is text in {name}; save the file in UTF-8."
        is_over = False
        while not is_over:
            # Room for a whole line, so that none is cut within its end.
            piece = file.readline(5 * _LONGEST_LINE)
            is_over = not piece
            try:
                found, bad = decoder.decode(piece, final=is_over), None
            except UnicodeDecodeError as error:
                found, bad = error.object[: error.start].decode(), error.object[error.start]
            *whole, rest = _LINE_END.split(found)
            line += len(whole)
            before = len(rest) + (0 if whole else before)
            if bad is not None:
                where = f"{path}, line {line}, character {before + 1}"
                return f"{where}: the byte 0x{bad:02X} is no text in UTF-8; save the file in UTF-8."
    return f"{path}: is no text in UTF-8, or changes while it is read."


class _Lines:
    """The lines of a file; a file without line ends would fill the memory.

    Args:
        file: The file.

    Attributes:
        is_ended: Whether the latest line has an end.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.is_ended = True

    def __iter__(self) -> Iterator[str]:
        """Yield each line.

        Raises:
            csv.Error: A line is too long.
        """
        while line := self._file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise csv.Error(f"the line has more than {_LONGEST_LINE:,} characters")
            self.is_ended = line.endswith(("\n", "\r"))
            yield line


def open_table(path: Path) -> Table:
    """Return a table by its heading line, whose separator is found out.

    Raises:
        SettingError: The file cannot be read, is empty or is no text.
    """
    try:
        with _open_text(path) as file:
            first = file.readline(100_000).rstrip("\r\n")
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingError(_explain_bad_byte(path)) from error
    if not first.strip():
        raise SettingError(f"{path}, line 1: there is no heading line.")
    delimiter = max("\t|;,", key=first.count)
    try:
        header = next(csv.reader([first], delimiter=delimiter))
    except csv.Error as error:  # a zero byte, with Python 3.10
        raise SettingError(f"{path}, line 1: cannot be read: {error}.") from error
    return Table(path, tuple(name.strip() for name in header), delimiter)
