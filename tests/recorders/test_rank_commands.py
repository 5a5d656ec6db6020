"""What the wrappers of a node tell each other of their commands."""

from __future__ import annotations

from pathlib import Path

from mlflow_perf.recorders.rank_commands import BLOCK, RankCommand, RankCommands


def test_a_rank_sees_the_commands_of_the_others(tmp_path: Path) -> None:
    """A running command has no CPU time yet; half a file is no command."""
    first, second = RankCommands(tmp_path, 0), RankCommands(tmp_path, 1)
    first.note(RankCommand(11))
    second.note(RankCommand(12))
    (tmp_path / "2.command").write_text('{"pid": 13')
    assert first.others() == [RankCommand(12)]
    assert (first.read_own(), RankCommands(tmp_path, 2).read_own()) == (RankCommand(11), None)
    assert first.cpu_by_pid() == {12: None}
    second.note(RankCommand(12, 6.0, "FAILED", "exit code 3"))
    assert first.cpu_by_pid() == {12: 6.0}
    assert first.others() == [RankCommand(12, 6.0, "FAILED", "exit code 3")]


def test_a_block_inside_a_wrapped_command_is_told_apart(tmp_path: Path) -> None:
    """Both are of one rank, and the files of one do not replace those of the other."""
    command, block = RankCommands(tmp_path, 1), RankCommands(tmp_path, 1, suffix=BLOCK)
    command.note(RankCommand(12))
    block.note(RankCommand(13, 0.0, "FAILED", "ValueError"))
    assert RankCommands(tmp_path, 0).others() == [RankCommand(12)]
    said = RankCommands(tmp_path, 0, suffix=BLOCK).others()
    assert said == [RankCommand(13, 0.0, "FAILED", "ValueError")]
