"""Tables of other systems and the units in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlflow_perf.errors import SettingError
from mlflow_perf.histories.table import Row, open_table


@pytest.mark.parametrize(
    ("text", "unit", "mb"),
    [
        ("1,5 GB", "", 1536.0), ("1,234 MB", "", 1234.0), ("1,234.5 MB", "", 1234.5),
        ("1.234,5 MB", "", 1234.5), ("1.5 GB", "", 1536.0),
        ("1048576", "", 1.0), ("2048K", "", 2.0), ("4", "M", 4.0),
        ("4000Mn", "", 4000.0), ("1 KiB", "", 1 / 1024), ("0", "", 0.0), ("-", "", None),
        ("", "", None),
    ],
)  # fmt: skip
def test_sizes(text: str, unit: str, mb: float | None) -> None:
    """Sizes come with a unit, in bytes, or in the unit that the source documents."""
    assert Row("f, line 2", {"size": text}).size_mb("size", unit=unit) == mb


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3m 20s", 200.0), ("850ms", 0.85), ("3,2s", 3.2), ("1h 2m 3s", 3723.0),
        ("1-02:03:04", 93784.0),
        ("02:03.5", 123.5), ("12:00:00", 43200.0), ("1500", 1500.0), ("-", None),
    ],
)  # fmt: skip
def test_time_spans(text: str, seconds: float | None) -> None:
    """Nextflow writes units, Slurm colons, and both plain numbers."""
    assert Row("f, line 2", {"time": text}).seconds("time") == seconds


@pytest.mark.parametrize("text", ["many", "-5", "nan", "NaN", "nan5", "1e400"])
def test_a_bad_figure_is_refused_with_its_place(text: str) -> None:
    """The message names file, line and column."""
    row = Row("trace.txt, line 7", {"peak_rss": text})
    with pytest.raises(SettingError, match=r"trace\.txt, line 7: peak_rss is "):
        row.size_mb("peak_rss")
    with pytest.raises(SettingError, match="line 7"):
        row.seconds("peak_rss")


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("seconds", "9" * 400 + "-00:00:00"), ("seconds", "1e17"), ("time", "1e999"),
        ("time", "-1"), ("time", "NaN"), ("time", "99999-01-01"),
    ],
)  # fmt: skip
def test_a_time_that_no_store_takes_is_refused(method: str, text: str) -> None:
    """MLflow keeps times in 64 bits of milliseconds."""
    with pytest.raises(SettingError, match="f, line 2: time is"):
        getattr(Row("f, line 2", {"time": text}), method)("time")


@pytest.mark.parametrize("text", ["0", "1970-01-01T00:00:00", "1969-12-31", "1999-12-30"])
def test_a_moment_before_these_systems_is_refused(text: str) -> None:
    """A workflow would last for half a century; 0 stands for a moment that is not known."""
    row = Row("jobs.txt, line 2", {"Submit": text, "Start": ""})
    with pytest.raises(SettingError) as refused:
        row.time("Start", "Submit")
    said = f"jobs.txt, line 2: Submit is {text!r}, which is before the year 2000."
    assert str(refused.value) == said


@pytest.mark.parametrize("delimiter", ["\t", "|", ";", ","])
def test_the_separator_is_found_out(tmp_path: Path, delimiter: str) -> None:
    """A quote in a name is part of the name where nothing is quoted."""
    path = tmp_path / "table"
    path.write_text(f"a{delimiter}b\n1{delimiter}2\n\n3{delimiter}4\n")
    assert [row.cells for row in open_table(path).rows()] == [
        {"a": "1", "b": "2"}, {"a": "3", "b": "4"},
    ]  # fmt: skip


def test_a_line_that_is_cut_off_is_refused_with_its_number(tmp_path: Path) -> None:
    """The last line of a file that is still written may be half."""
    path = tmp_path / "table"
    path.write_text("a\tb\n1\t2\n3\n")
    with pytest.raises(SettingError, match="line 3: 1 cell below 2 headings"):
        list(open_table(path).rows())
    path.write_text("")
    with pytest.raises(SettingError, match="line 1: there is no heading line"):
        open_table(path)


def test_a_last_cell_that_may_be_cut_off_is_refused(tmp_path: Path) -> None:
    """Of `3600` it may have the `36`; a line that ends with the separator is whole."""
    path = tmp_path / "jobs.txt"
    path.write_text("JobID|Elapsed\n1|3600\n2|36")
    with pytest.raises(SettingError) as refused:
        list(open_table(path).rows())
    assert str(refused.value) == (
        f"{path}, line 3: Elapsed may be cut off, as the line has no end; if it is whole, add one."
    )
    path.write_text("JobID|Elapsed|\n1|3600|\n2|3600|")
    assert len(list(open_table(path).rows())) == 2


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    """A file without line ends is not read into memory; the message names the line."""
    (tmp_path / "trace.txt").write_text("task_id\tstatus\n" + "x" * 1_200_000)
    with pytest.raises(SettingError, match=r"line 2: cannot be read: the line has more than"):
        list(open_table(tmp_path / "trace.txt").rows())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("rows", [2, 200_000])
def test_the_first_byte_that_is_no_text_is_named(tmp_path: Path, rows: int, end: str) -> None:
    """Files are decoded in blocks, and the message names the line and the character."""
    path = tmp_path / "trace.txt"
    text = f"\ufeffname\tä{end}" + f"é\t2{end}" * rows
    path.write_bytes(text.encode() + b"\xc3\xa9 S\xe3o\t4" + end.encode())
    place = rf"trace\.txt, line {rows + 2}, character 4: the byte 0xE3 is no text in UTF-8; save"
    with pytest.raises(SettingError, match=place):
        list(open_table(path).rows())


def test_a_file_that_ends_within_a_character_is_no_text(tmp_path: Path) -> None:
    """A file that is still written, or was cut off, may end with half a character."""
    path = tmp_path / "trace.txt"
    path.write_bytes("a\tb\n1\té".encode()[:-1])
    with pytest.raises(SettingError, match="line 2, character 3: the byte 0xC3"):
        list(open_table(path).rows())


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
def test_a_file_in_another_encoding_is_named_with_it(tmp_path: Path, encoding: str) -> None:
    """Programs on Windows write UTF-16, with a mark at the beginning."""
    path = tmp_path / "trace.txt"
    path.write_text("a\tb\n1\t2\n", encoding=encoding)
    with pytest.raises(SettingError, match=f"trace.txt, line 1: is text in {encoding}; save"):
        open_table(path)


def test_a_pipe_is_no_table(tmp_path: Path) -> None:
    """A pipe in a folder of traces does not keep the reader waiting."""
    os.mkfifo(tmp_path / "trace.txt")
    with pytest.raises(SettingError, match="it is a pipe"):
        open_table(tmp_path / "trace.txt")
