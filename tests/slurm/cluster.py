"""A real Slurm of two nodes on this machine: made in a folder, started and stopped by the tests.

Each node is a `slurmd` in UTS, mount and PID namespaces of its own, so that it has its own host
name and its own processes. Where the first version of control groups can be written, Slurm puts
each task into a group of its own and enforces its memory, as on a real cluster.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Cluster", "why_not_here"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "unshare")
_APART = ("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_GROUPS = Path("/sys/fs/cgroup")
_START_SEC = 60.0

_CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/spool/%n
SlurmctldPidFile={folder}/pid/slurmctld
SlurmdPidFile={folder}/pid/%n
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/{track}
TaskPlugin=task/affinity{task}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=30
KillWait=5
DefMemPerCPU=1000
NodeName={nodes[0]} NodeHostname={nodes[0]} NodeAddr=127.0.0.1 Port={ports[1]} {size}
NodeName={nodes[1]} NodeHostname={nodes[1]} NodeAddr=127.0.0.1 Port={ports[2]} {size}
PartitionName=short Nodes=ALL Default=YES MaxTime=INFINITE
"""


def why_not_here() -> str:
    """Return why no Slurm can be started on this machine; empty if it can."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"needs Debian's slurmctld, slurmd, slurm-client and munge: no {missing[0]}"
    if os.geteuid() != 0:
        return "needs root, as slurmd does"
    if subprocess.run([*_APART, "true"], capture_output=True, check=False).returncode != 0:
        return "needs namespaces for the nodes' host names and processes"
    return ""


class Cluster:
    """Two nodes with a scheduler.

    Args:
        folder: An empty folder for configuration, state and logs.

    Attributes:
        nodes: The names of the nodes.
        limits: Whether Slurm enforces memory and cores through control groups.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = _find_ports(3)
        # A control group is named after its node; two clusters may run at the same time.
        self.nodes = [f"n{ports[0]}x{i}" for i in (1, 2)]
        self.limits = all((_GROUPS / name / "tasks").exists() for name in ("memory", "freezer"))
        self._started: list[subprocess.Popen[bytes]] = []
        for name in ("munge", "state", "spool", "pid", "log"):
            (folder / name).mkdir(parents=True)
        (folder / "munge").chmod(0o755)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        (folder / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nConstrainCores=yes\nConstrainRAMSpace=yes\n"
            "ConstrainSwapSpace=yes\n"
        )
        size = f"CPUs={os.cpu_count()} RealMemory=6000"
        (folder / "slurm.conf").write_text(
            _CONFIG.format(
                host=socket.gethostname().split(".")[0], folder=folder, ports=ports,
                nodes=self.nodes, size=size, track="cgroup" if self.limits else "linuxproc",
                task=",task/cgroup" if self.limits else "",
            )
        )  # fmt: skip
        names = "".join(f"127.0.0.1 {name}\n" for name in self.nodes)
        (folder / "hosts").write_text(Path("/etc/hosts").read_text() + names)

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which Slurm's commands find this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Start all daemons, and wait until both nodes take jobs."""
        folder = self.folder
        self._run(
            "munged", "--foreground", f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge/socket", f"--pid-file={folder}/pid/munged",
            f"--seed-file={folder}/munge.seed", f"--log-file={folder}/log/munged", "--force",
        )  # fmt: skip
        _wait_until((folder / "munge" / "socket").exists, "munged")
        self._run("slurmctld", "-D", "-c")
        for name in self.nodes:
            (folder / "spool" / name).mkdir()
            script = (
                'hostname "$1" && mount --bind "$2/hosts" /etc/hosts && '
                'mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N "$1" -f "$2/slurm.conf"'
            )
            self._run(*_APART, "bash", "-c", script, "node", name, str(folder))
        _wait_until(
            lambda: self.call("sinfo", "-hNo", "%T").stdout.split() == ["idle"] * 2, "Slurm"
        )

    def _run(self, *argv: str) -> None:
        with (self.folder / "log" / "output").open("ab") as log:
            self._started.append(
                subprocess.Popen(
                    argv, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )
            )  # fmt: skip

    def call(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command, such as one of Slurm's, to its end.

        Args:
            argv: The command.
            environ: More environment variables.
        """
        return subprocess.run(
            argv, env={**self.environ, **environ}, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    def stop(self) -> None:
        """End all jobs, then all daemons, and take away their control groups."""
        self.call("scancel", "--full", "--signal=KILL", "--user=root")
        for process in reversed(self._started):
            process.send_signal(signal.SIGKILL)
            process.wait(20)
        for name in self.nodes:
            for group in _GROUPS.glob(f"*/slurm_{name}"):
                until = time.monotonic() + 10
                while not _remove_group(group) and time.monotonic() < until:
                    time.sleep(0.05)


def _remove_group(group: Path) -> bool:
    """Remove a control group with those below it, and return whether it is gone."""
    try:
        for folder, _, _ in os.walk(group, topdown=False):
            os.rmdir(folder)
    except OSError:  # a killed process of it is still there
        return not group.exists()
    return True


def _wait_until(is_done: Callable[[], bool], name: str) -> None:
    until = time.monotonic() + _START_SEC
    while not is_done():
        if time.monotonic() > until:
            raise RuntimeError(f"{name} did not start")
        time.sleep(0.05)


def _find_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
