"""What the wrappers of a node tell each other of their commands."""

from __future__ import annotations

from pathlib import Path

from mlflow_perf.recorders.rank_commands import RankCommand, RankCommands


def test_a_rank_sees_the_commands_of_the_others(tmp_path: Path) -> None:
    """A running command has no CPU time yet; half a file is no command."""
    first, second = RankCommands(tmp_path, 0), RankCommands(tmp_path, 1)
    first.note(RankCommand(11))
    second.note(RankCommand(12))
    (tmp_path / "2.command").write_text('{"pid": 13')
    assert first.others() == [RankCommand(12)]
    assert first.cpu_by_pid() == {12: None}
    second.note(RankCommand(12, 6.0, "FAILED", "exit code 3"))
    assert first.cpu_by_pid() == {12: 6.0}
    assert first.others() == [RankCommand(12, 6.0, "FAILED", "exit code 3")]
