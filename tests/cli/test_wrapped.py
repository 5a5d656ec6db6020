"""What `mlflow-perf run` and `mlflow-perf group` do before and after their command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from mlflow_perf.cli._wrapped import leave, prepare_command


def test_a_missing_command_ends_as_in_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 127, and one line names the command."""
    with pytest.raises(SystemExit) as ended:
        prepare_command(("no-such-command-here", "x"))
    assert ended.value.code == 127
    assert capsys.readouterr().err == "mlflow-perf: no-such-command-here: command not found\n"


def test_a_file_that_cannot_be_executed_ends_as_in_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 126."""
    (tmp_path / "text").write_text("no program")
    with pytest.raises(SystemExit) as ended:
        prepare_command((str(tmp_path / "text"),))
    assert ended.value.code == 126
    assert "cannot be executed" in capsys.readouterr().err


def test_the_command_replaces_us_only_where_we_are_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `MLFLOW_PERF_DISABLE=true` the command runs without a process of ours around it."""
    replace = Mock()
    monkeypatch.setattr(os, "execvp", replace)
    prepare_command((sys.executable, "-c", "pass"))
    replace.assert_not_called()
    monkeypatch.setenv("MLFLOW_PERF_DISABLE", "true")
    prepare_command((sys.executable, "-c", "pass"))
    replace.assert_called_once_with(sys.executable, (sys.executable, "-c", "pass"))


def test_a_broken_stream_does_not_stop_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output may be closed or full; the exit code of the command still counts."""
    broken, healthy = Mock(flush=Mock(side_effect=OSError("full"))), Mock()
    monkeypatch.setattr(sys, "stdout", broken)
    monkeypatch.setattr(sys, "stderr", healthy)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="3"):
        leave(3)
    healthy.flush.assert_called_once_with()
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit, match="4"):
        leave(4)


def test_a_signal_that_ended_the_command_ends_us(tmp_path: Path) -> None:
    """A shell's loop, `xargs` and `mpirun` ask for it; a core file beside the command's is none."""
    names = ("INT", "TERM", "KILL", "PIPE", "SEGV", "QUIT", "RTMIN")
    numbers = [str(int(getattr(signal, f"SIG{name}"))) for name in names]
    code = (
        "import os, resource, signal, sys; from mlflow_perf.cli._wrapped import leave\n"
        "most = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (most, most))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for number in map(int, sys.argv[1:]):\n"
        "    if (pid := os.fork()) == 0: leave(-number)\n"
        "    print(os.waitpid(pid, 0)[1], flush=True)\n"
        "leave(130)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *numbers],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    # A status is the signal's number; 128 would be added for a core file.
    assert (done.stdout.split(), done.stderr) == (numbers, "")
    assert done.returncode == 130, "an exit code that a shell gave is no signal"
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_no_signal_ends_has_the_exit_code_of_a_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first process of a container survives each signal that it does not handle."""
    monkeypatch.setattr("mlflow_perf.cli._wrapped._end_by_signal", Mock())
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="143"):
        leave(-signal.SIGTERM)


def test_the_command_gets_the_locale_that_we_got() -> None:
    """Python sets `LC_CTYPE` where no locale is given, as under cron; `wc -m` differs."""
    code = (
        "import os; from mlflow_perf.cli._wrapped import prepare_command as prepare\n"
        "print(os.environ['LC_CTYPE']); prepare(('true',)); print(os.environ.get('LC_CTYPE'))"
    )
    for given, kept in (({}, "None"), ({"LC_CTYPE": "C"}, "C")):
        env = {"PATH": os.environ["PATH"], **given}
        argv = [sys.executable, "-c", code]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["C.UTF-8", kept], done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_before_the_command_can_get_it_ends_us(name: str) -> None:
    """What was begun is taken back first; the exit is that of the signal."""
    code = (
        "import signal, sys; from mlflow_perf.cli._wrapped import ending_by_signal\n"
        "with ending_by_signal():\n"
        "    try: signal.raise_signal(signal.Signals[sys.argv[1]])\n"
        "    finally: print('taken back')\n"
        "print('goes on')"
    )
    argv = [sys.executable, "-c", code, name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    ended = -signal.Signals[name], "taken back\n", ""
    assert (done.returncode, done.stdout, done.stderr) == ended
