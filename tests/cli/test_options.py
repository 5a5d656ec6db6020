"""What several commands share: groups, lists of runs, output files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mlflow_perf.cli import main
from mlflow_perf.cli._options import split, write
from mlflow_perf.errors import SettingError


def test_a_mistyped_command_gets_a_suggestion() -> None:
    """An unknown command is one line with the nearest name, and ends with 2."""
    for words, line in [
        (["shwo"], "There is no command 'shwo'. Did you mean show?"),
        (["pipeline", "rnu"], "There is no command 'rnu'. Did you mean run?"),
    ]:
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, result.output) == (2, f"mlflow-perf: {line}\n")
    result = CliRunner().invoke(main, ["zzz"])
    assert result.exit_code == 2
    assert result.output.startswith("mlflow-perf: There is no command 'zzz'. Commands: advise,")
    assert result.output.count("\n") == 1


def test_several_runs_are_separated_by_commas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blanks and empty parts are dropped; an existing path is one run, commas or not."""
    monkeypatch.chdir(tmp_path)
    assert split("a, b,,c") == ["a", "b", "c"]
    assert split("a,a, b,a") == ["a", "b"]  # one run is no repeat of itself
    assert len(split(",".join(f"{number:032x}" for number in range(40)))) == 40
    Path("a,b.json").write_text("{}")
    assert split("a,b.json") == ["a,b.json"]


def test_a_text_is_written_to_a_file_or_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dash is standard output; a place that cannot be written is named."""
    write(str(tmp_path / "out.md"), "text\n")
    assert (tmp_path / "out.md").read_text() == "text\n"
    write("-", "text")
    assert capsys.readouterr().out == "text\n"
    with pytest.raises(SettingError, match="cannot be written: No such file"):
        write(str(tmp_path / "no" / "out.md"), "")


@pytest.mark.parametrize("is_summary", [False, True])
def test_the_summary_of_a_step_of_github_actions_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_summary: bool
) -> None:
    """A step may write a heading before, and have two gates, by any path; others are replaced."""
    file = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file if is_summary else tmp_path / "other.md"))
    (link := tmp_path / "link.md").symlink_to(file)
    for path, text in ((file, "first\n"), (link, "second\n")):
        write(str(path), text)
    assert file.read_text() == ("first\n" if is_summary else "") + "second\n"
