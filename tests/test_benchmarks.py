"""The command that runs the benchmarks."""

from __future__ import annotations

import pytest
from benchmarks.__main__ import FILES, main


def test_the_help_names_each_benchmark_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Every benchmark has a line that says what it measures; one's own help is its docstring."""
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert named == list(FILES)
    assert all(line.endswith((".", "?", "`.")) for line in lines if line.startswith("  "))
    assert main(["gate", "--help"]) == 0
    assert "--data FILE" in capsys.readouterr().out


def test_an_unknown_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The line says what there is; nothing is run."""
    assert main(["report", "repotr"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("There is no benchmark 'repotr'; there are: analysis, ")
