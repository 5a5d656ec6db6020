"""Programs that start a command's work where it cannot be measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mlflow_perf.session.remote_tasks import RemoteTasks


def test_a_launcher_is_known_by_its_name() -> None:
    """The launcher is reported once; other commands are not reported."""
    tasks = RemoteTasks(["/usr/bin/srun", "-n2", "hostname"], os.getpid())
    assert [tasks.look(), tasks.look(), tasks.launcher] == [True, False, "srun"]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert not RemoteTasks(["echo", "srun"], process.pid).look()
        process.communicate(b"")


def test_a_launcher_below_a_script_is_found(tmp_path: Path) -> None:
    """A batch script that calls srun has its steps run elsewhere too."""
    (tmp_path / "srun").symlink_to(sys.executable)
    script = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    wait = "import sys; print(flush=True); sys.stdin.read()"
    below = [str(tmp_path / "srun"), "-c", wait]
    with subprocess.Popen(
        [sys.executable, "-c", script, *below], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tasks = RemoteTasks(["bash", "job.sh"], process.pid)
        assert tasks.look()
        assert tasks.launcher == "srun"
        process.communicate(b"")
