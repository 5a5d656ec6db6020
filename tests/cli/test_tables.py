"""Tables and sentences: they fit the terminal, and lose nothing in a pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlflow_perf.cli import _tables

Captured = pytest.CaptureFixture[str]


def test_a_table_is_plain_text_in_a_pipe(capsys: Captured) -> None:
    """Columns are two spaces apart, figures are right-aligned, and no line ends with a space."""
    _tables.table(["step", "h"], [["fit", 1.5], ["a longer one", 20]], right=1, styles=["worse"])
    assert capsys.readouterr().out == "step            h\nfit           1.5\na longer one   20\n"


def test_a_locale_without_a_character_gets_a_question_mark() -> None:
    """Not an exception behind a pipeline that has finished: Latin-1 has no dash."""
    code = (
        "from mlflow_perf.cli import _tables, main; "
        "main(['--version'], standalone_mode=False); _tables.table(['ä'], [['–']])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.decode("latin-1").splitlines()[1:]) == (0, ["ä", "?"])


def test_a_key_that_does_not_fit_continues_on_the_next_line(capsys: Captured) -> None:
    """A table too narrow for its keys folds them: no character of a key is lost."""
    keys = [f"cpu_avg_utilization_over{threshold}_pct" for threshold in (20, 40, 80)]
    _tables.table(["metric", "value"], [(key, "9" * 60) for key in keys], right=1)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert max(map(len, lines)) <= 80
    assert "".join(line.split()[0] for line in lines) == "".join(keys)


def test_a_long_name_is_cut_after_a_separator() -> None:
    """No part of a name is split unless it is itself too long; no character is lost."""
    assert _tables._fold("store.get.deserialize", 12) == ["store.get.", "deserialize"]
    assert _tables._fold("a/deserialize b", 6) == ["a/", "deseri", "alize", "b"]


def test_figures_are_never_folded(capsys: Captured) -> None:
    """A table of figures that are wider than the terminal keeps each on one line."""
    _tables.table(["name", "a", "b"], [("n" * 20, "1" * 50, "2" * 50)], right=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["n" * 8, "1" * 50, "2" * 50]
    assert "".join(line.split()[0] for line in lines[1:]) == "n" * 20


def test_colours_are_for_a_terminal_only(capsys: Captured) -> None:
    """A row has its style on a terminal; the text is the same without one."""
    _tables.table(["a", "b"], [["x", "y"]], styles=["failed"])
    plain = capsys.readouterr().out

    def draw() -> None:
        _tables.table(["a", "b"], [["x", "y"]], styles=["failed"])

    import click

    coloured = CliRunner().invoke(click.command()(draw), color=True).output
    assert "\x1b[31m\x1b[1mx" in coloured
    assert click.unstyle(coloured) == plain
    assert "\x1b" not in plain


def test_markup_in_a_cell_is_text(capsys: Captured) -> None:
    """A name in brackets or colons is printed as it is, and a control character is spelled out."""
    _tables.table(["name"], [["[red]x[/red]"], [":smile:"], ["a\x1b[2Jb\n"]])
    names = capsys.readouterr().out.splitlines()[1:]
    assert names == ["[red]x[/red]", ":smile:", "a\\x1b[2Jb\\x0a"]


def test_wide_characters_take_two_columns(capsys: Captured) -> None:
    """Columns stay aligned beside characters that are two columns wide."""
    _tables.table(["name", "h"], [["日本", 1], ["abcd", 2]], right=1)
    assert capsys.readouterr().out.splitlines() == ["name  h", "日本  1", "abcd  2"]
    assert _tables.short("日本" * 40) == "日本" * 19 + "日 …"


@pytest.mark.parametrize("length", range(1, 40))
def test_each_line_of_a_sentence_fits(length: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Continuation lines are indented under the first line and are no longer than it."""
    _tables.paragraph("Evidence", [" ".join(["x" * length] * 100)])
    first, *others = capsys.readouterr().out.splitlines()[2:]
    assert first.startswith("- x")
    assert all(line.startswith("  x") for line in others)
    assert max(map(len, [first, *others])) <= 80


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"], ["show", "DOC", "--json"]])
def test_rich_is_imported_for_tables_only(arguments: list[str], tmp_path: Path) -> None:
    """A command that draws no table does not pay for the import of rich."""
    document = tmp_path / "doc.json"
    document.write_text(
        '{"schema": "mlflow-perf/1", "nodes": {"0": {"summary": {"duration_sec": 1.0}}}}'
    )
    words = [str(document) if word == "DOC" else word for word in arguments]
    code = f"""
import sys
from mlflow_perf.cli import main
try:
    main({words!r})
finally:
    sys.exit("rich" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_characters_that_a_terminal_cannot_show_are_spelled_out() -> None:
    """Control characters, marks that change the direction, and lone surrogates are escaped."""
    assert _tables.clean("a\x1b[1m\u061c\u202e\ud800\udfffb") == (
        "a\\x1b[1m\\u061c\\u202e\\ud800\\udfffb"
    )
