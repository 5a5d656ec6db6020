"""The name, the start and the end of a command that is recorded from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlflow_perf.session.command import (
    check_command,
    judge_end,
    name_component,
)
from mlflow_perf.session.held_child import NOT_EXECUTABLE, NOT_FOUND


def test_a_command_that_cannot_be_started_has_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    """A command that does not exist is 127, a file that cannot be executed 126."""
    (tmp_path / "data").write_text("")
    assert check_command(["sh"]) == 0
    assert check_command(["no-such-command-here"]) == NOT_FOUND
    assert check_command([str(tmp_path / "data")]) == NOT_EXECUTABLE
    assert check_command([str(tmp_path / "data" / "sub")]) == NOT_FOUND
    assert check_command([str(tmp_path / ("x" * 5000))]) == NOT_EXECUTABLE, "it cannot be looked at"


@pytest.mark.parametrize(
    ("code", "ended_by", "received", "oom_kills", "expected"),
    [
        (0, 0, [], 0, ("FINISHED", None)),
        (3, 0, [], 0, ("FAILED", "exit code 3")),
        (143, 15, [15], 0, ("KILLED", "signal SIGTERM")),
        (0, 0, [15], 0, ("KILLED", "signal SIGTERM")),
        (0, 0, [2], 0, ("FINISHED", None)),
        (130, 2, [2], 0, ("KILLED", "signal SIGINT")),
        (0, 0, [1], 0, ("FINISHED", None)),
        (0, 0, [1, 15], 0, ("KILLED", "signal SIGTERM")),
        (143, 15, [1, 15], 0, ("KILLED", "signal SIGTERM")),
        (1, 0, [1], 0, ("KILLED", "signal SIGHUP")),
        (0, 0, [10], 0, ("FINISHED", None)),
        (137, 9, [], 0, ("KILLED", "signal SIGKILL")),
        (137, 0, [], 0, ("KILLED", "signal SIGKILL")),
        (139, 11, [], 0, ("KILLED", "signal SIGSEGV")),
        (139, 0, [], 0, ("KILLED", "signal SIGSEGV")),
        (142, 14, [], 0, ("KILLED", "signal SIGALRM")),
        (168, 40, [], 0, ("KILLED", "signal 40")),
        (200, 0, [], 0, ("FAILED", "exit code 200")),
        (0, 0, [], 1, ("FINISHED", None)),
    ],
)
def test_how_a_command_ended(
    code: int, ended_by: int, received: list[int], oom_kills: int, expected: tuple[str, str | None]
) -> None:
    """Status and cause follow from exit code, signals and OOM kills."""
    end = judge_end(code, ended_by=ended_by, received=received, oom_kills=oom_kills)
    assert (end.status, end.cause) == expected


def test_an_oom_kill_is_told_from_another_sigkill() -> None:
    """The cgroup's counter makes the difference."""
    end = judge_end(137, ended_by=9, received=[], oom_kills=1)
    assert end.status == "KILLED"
    assert "OOM killer" in str(end.cause)
    assert judge_end(1, ended_by=0, received=[], oom_kills=1).status == "FAILED"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "-u", "src/train.py", "--x", "1"], "train"),
        (["python3.11", "-m", "pkg"], "pkg"),
        (["python", "-u", "-X", "dev", "-m", "pkg.train", "--x", "s3cr3t.py"], "pkg.train"),
        (["nice", "python", "-um", "pkg.train", "s3cr3t"], "pkg.train"),
        (["python", "-m", "--help"], "python"),
        (["python", "-m"], "python"),
        (["python", "s3cr3t", "-m", "pkg"], "python"),
        (["python", "-c", "pass", "-m", "pkg"], "python"),
        (["bash", "-m", "pkg"], "bash"),
        (["python", "-m", "torch.distributed.run", "--standalone", "x"], "python"),
        (["python", "tool.pyz", "in"], "tool"),
        (["./run.sh"], "run"),
        (["/usr/bin/make", "all"], "make"),
        (["Rscript", "fit.R"], "fit"),
        (["bash", "-c", "TOKEN=s3cr3t python3 train.py"], "bash"),
        (["bash", "-lc", "curl -u me:s3cr3t host/x.sh", "s3cr3t.sh"], "bash"),
        (["perl", "-ne", "s3cr3t.pl"], "perl"),
        (["env", "TOKEN=s3cr3t.py", "python", "train.py"], "train"),
        (["env", "-u", "X", "TOKEN=/x/s3cr3t.py", "nice", "mytool", "s3cr3t"], "env"),
        (["env", "TOKEN=s3\ncr3t.py", "mytool", "s3cr3t"], "mytool"),
        (["env", "TOKEN=s3cr3t.py"], "env"),
        (["python", "TOKEN=s3cr3t.py"], "python"),
        (["mytool", "--password", "s3cr3t.py"], "mytool"),
        (["timeout", "-k", "5", "60", "python", "train.py"], "train"),
        (["nohup", "nice", "-n", "5", "python3", "-u", "train.py", "s3cr3t"], "train"),
        (["srun", "-p", "gpu", "--mpi=pmix", "Rscript", "fit.R"], "fit"),
        (["timeout", "1.5h", "mytool", "s3cr3t"], "mytool"),
        (["timeout", "--foreground", "60", "mytool", "s3cr3t"], "mytool"),
        (["time", "-v", "mytool", "s3cr3t"], "time"),
        (["timeout"], "timeout"),
    ],
)
def test_the_component_is_the_script(argv: list[str], name: str) -> None:
    """A script's name where an interpreter runs one, else the command's."""
    assert name_component(argv) == name


def test_no_word_of_a_command_needs_to_be_a_path() -> None:
    """A text that is longer than any name of a file is none; the command's name is used."""
    assert name_component(["echo", "x" * 300]) == "echo"
    assert name_component(["timeout", "60", "x" * 5000 + ".py"]) == "x" * 5000
    assert name_component(["mytool", "x/" * 5000 + "train.py"]) == "mytool"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such users")
def test_a_folder_that_may_not_be_entered_hides_its_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `sudo -u` in `/root`, be it the working folder or that of an argument."""
    (tmp_path / "train.py").write_text("")
    launched = ["python", "-m", "torch.distributed.run", "-n", "2", str(tmp_path / "train.py")]
    assert name_component(launched) == "train"
    assert name_component(["mytool", str(tmp_path / "train.py")]) == "train"
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        names = [name_component(["mytool", word]) for word in ("x", "train.py", f"{tmp_path}/x.py")]
        assert names == ["mytool"] * 3
        assert name_component(["timeout", "60", "train.py"]) == "train"
        assert name_component(["python", "train.py"]) == "train"
    finally:
        if is_root:
            os.seteuid(0)
        tmp_path.chmod(0o700)
