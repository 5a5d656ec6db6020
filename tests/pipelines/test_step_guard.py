"""No process of a step outlives a runner that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

RUNNER = """
import os, sys
from pathlib import Path
from mlflow_perf.pipelines.launch import Rank
from mlflow_perf.pipelines.processes import Limits, run_ranks
folder = Path(sys.argv[1])
script = "trap 'sleep 0.3; echo the last words; exit' TERM; "
script += "sleep 300 & echo $! > child.txt; mv child.txt child; wait"
command = ("bash", "-c", script)
limits = Limits(None, folder / "stop", folder / "note")
os.environ["MLFLOW_PERF_STOP_NOTE"] = str(folder / "note")
run_ranks([Rank(command, {}, "log")], folder=folder, logs=folder, environ=os.environ, limits=limits)
"""


def test_a_killed_runner_leaves_no_process(tmp_path: Path) -> None:
    """Its guard ends the whole process group of each rank, the children of its shell too."""
    with subprocess.Popen([sys.executable, "-c", RUNNER, str(tmp_path)]) as runner:
        _wait((tmp_path / "child").exists)
        runner.kill()
    child = int((tmp_path / "child").read_text())
    try:
        _wait(lambda: not _lives(child))
        _wait(lambda: (tmp_path / "log").read_text() == "the last words\n")
    finally:
        if _lives(child):
            os.kill(child, signal.SIGKILL)


DAEMON = """
trap 'for _ in $(seq 90); do [ -e told ] && echo first && exit; sleep 0.1; done; exit' TERM
cat > daemon.sh <<'END'
trap 'touch told; setsid sleep 0.4 && touch saved' TERM
touch child
sleep 300 & wait
END
setsid --fork bash daemon.sh
sleep 300 & wait
"""


def test_a_daemon_is_told_to_end_at_once(tmp_path: Path) -> None:
    """It has time to save what it has, also beside a command that takes its ten seconds."""
    _kill_runner_of(DAEMON, tmp_path)
    _wait(lambda: (tmp_path / "log").read_text() == "first\n")
    _wait((tmp_path / "saved").exists)


LAUNCHER = """
cat > rank.sh <<'END'
trap 'echo told >> told; sleep 0.5 & wait $!' TERM
echo $$ > rank.txt
mv rank.txt rank
sleep 300 &
wait $!
END
cat > launcher.sh <<'END'
trap 'kill -TERM $(cat rank)' TERM
setsid bash rank.sh &
sleep 300 & wait $!
while kill -0 $(cat rank); do sleep 0.1; done
END
setsid --fork bash launcher.sh
while [ ! -e rank ]; do sleep 0.05; done
touch child
sleep 300 & wait
"""


def test_what_a_daemon_leads_is_left_to_it(tmp_path: Path) -> None:
    """As the ranks of `mpiexec`: many save at the first SIGTERM, and end at the second one."""
    _kill_runner_of(LAUNCHER, tmp_path)
    rank = int((tmp_path / "rank").read_text())
    _wait(lambda: not _lives(rank))
    assert (tmp_path / "told").read_text() == "told\n"


@pytest.mark.parametrize("start", ["setsid", "setsid --fork"])
def test_what_a_step_started_in_a_session_of_its_own_is_ended_too(
    tmp_path: Path, start: str
) -> None:
    """As where its runner stops it itself: its own children, and daemons, which have no parent."""
    code = RUNNER.replace(
        "sleep 300 &", f"{start} bash -c 'sleep 300 & echo $! > deep; wait' & sleep 300 &"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as runner:
        _wait(lambda: (tmp_path / "child").exists() and (tmp_path / "deep").exists())
        _wait(lambda: (tmp_path / "deep").read_text() != "")
        runner.kill()
    left = [int((tmp_path / name).read_text()) for name in ("child", "deep")]
    try:
        _wait(lambda: not any(map(_lives, left)))
    finally:
        for pid in filter(_lives, left):
            os.kill(pid, signal.SIGKILL)


def _kill_runner_of(script: str, folder: Path) -> None:
    """Kill the runner of a step once its script has made the file `child`."""
    (folder / "step.sh").write_text(script)
    code = RUNNER.replace('"-c", script', '"step.sh"')
    with subprocess.Popen([sys.executable, "-c", code, str(folder)]) as runner:
        _wait((folder / "child").exists)
        runner.kill()


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _wait(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until, "not within half a minute"
        time.sleep(0.05)
