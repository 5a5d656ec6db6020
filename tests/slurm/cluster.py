"""A real Slurm of two nodes on this machine: made in a folder, started and stopped by the tests.

Each node is a `slurmd` in UTS, mount and PID namespaces of its own, so that it has its own host
name and its own processes. Where the first version of control groups can be written, Slurm puts
each task into a group of its own and enforces its memory, as on a real cluster.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Cluster", "why_no_accounting", "why_not_here"]

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
{accounting}
MpiDefault=none
ReturnToService=2
SlurmdTimeout=30
KillWait=5
DefMemPerCPU=1000
NodeName={nodes[0]} NodeHostname={nodes[0]} NodeAddr=127.0.0.1 Port={ports[1]} {size}
NodeName={nodes[1]} NodeHostname={nodes[1]} NodeAddr=127.0.0.1 Port={ports[2]} {size}
PartitionName=short Nodes=ALL Default=YES MaxTime=INFINITE
"""

_ACCOUNTING = """\
JobAcctGatherType=jobacct_gather/{gather}
JobAcctGatherFrequency=task=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass={folder}/munge/socket
AccountingStoragePort={port}"""

_DATABASE = """\
AuthInfo=socket={folder}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageUser=root
StorageLoc=slurm
LogFile={folder}/log/slurmdbd
PidFile={folder}/pid/slurmdbd
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


def why_no_accounting() -> str:
    """Return why there can be no `sacct` on this machine; empty if there can."""
    wanted = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct")
    missing = [name for name in wanted if shutil.which(name) is None]
    return f"needs Debian's slurmdbd and mariadb-server: no {missing[0]}" if missing else ""


class Cluster:
    """Two nodes with a scheduler.

    Args:
        folder: An empty folder for configuration, state and logs.
        accounting: Whether jobs are accounted for: `slurmdbd` over a MariaDB.

    Attributes:
        nodes: The names of the nodes.
        limits: Whether Slurm enforces memory and cores through control groups.
    """

    def __init__(self, folder: Path, *, accounting: bool = False) -> None:
        self.folder = folder
        self._has_accounting = accounting
        ports = _find_ports(4)
        # A control group is named after its node; two clusters may run at the same time.
        self.nodes = [f"n{ports[0]}x{i}" for i in (1, 2)]
        self.limits = all((_GROUPS / name / "tasks").exists() for name in ("memory", "freezer"))
        self._started: list[subprocess.Popen[bytes]] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}
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
        kept = "JobAcctGatherType=jobacct_gather/none"
        if accounting:
            gather = "cgroup" if self.limits else "linux"
            kept = _ACCOUNTING.format(folder=folder, port=ports[3], gather=gather)
            (folder / "slurmdbd.conf").write_text(
                _DATABASE.format(folder=folder, port=ports[3], host=_own_host())
            )
            (folder / "slurmdbd.conf").chmod(0o600)
        (folder / "slurm.conf").write_text(
            _CONFIG.format(
                accounting=kept,
                host=_own_host(), folder=folder, ports=ports,
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
        if self._has_accounting:
            self._start_accounting()
        self._run("slurmctld", "-D", "-c")
        for name in self.nodes:
            (folder / "spool" / name).mkdir()
            self._start_node(name)
        self._wait_for_nodes()

    def _start_accounting(self) -> None:
        data, socket_path = self.folder / "mysql", self.folder / "mysql.sock"
        self.call(
            "mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}",
            "--skip-test-db", "--auth-root-authentication-method=normal",
        )  # fmt: skip
        self._run(
            "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}",
            f"--socket={socket_path}", "--skip-networking",
        )  # fmt: skip
        make = ("mariadb", "--no-defaults", "-uroot", "-S", str(socket_path), "-e")
        _wait_until(
            lambda: self.call(*make, "create database if not exists slurm").returncode == 0,
            "mariadbd",
        )
        self._run("env", f"MYSQL_UNIX_PORT={socket_path}", "slurmdbd", "-D")
        _wait_until(
            lambda: self.call("sacctmgr", "-n", "show", "cluster").returncode == 0, "slurmdbd"
        )
        self.call("sacctmgr", "-i", "-Q", "add", "cluster", "tests")

    def _start_node(self, name: str) -> None:
        script = (
            'hostname "$1" && mount --bind "$2/hosts" /etc/hosts && '
            'mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N "$1" -f "$2/slurm.conf"'
        )
        self._running[name] = self._run(
            *_APART, "bash", "-c", script, "node", name, str(self.folder)
        )

    def _wait_for_nodes(self) -> None:
        _wait_until(
            lambda: self.call("sinfo", "-hNo", "%T").stdout.split() == ["idle"] * 2, "Slurm"
        )

    def lose(self, name: str) -> None:
        """Kill a node with all its processes, as a power cut does."""
        node = self._running[name]
        node.kill()  # the first process of its namespace, and so all of them
        node.wait(20)

    def repair(self, name: str) -> None:
        """Start a lost node again, and wait until it takes jobs."""
        # Slurm would wait for SlurmdTimeout before it ends the jobs of the node.
        self.call("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=lost")
        self._start_node(name)
        self.call("scontrol", "update", f"NodeName={name}", "State=RESUME")
        self._wait_for_nodes()

    def _run(self, *argv: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log" / "output").open("ab") as log:
            process = subprocess.Popen(
                argv, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

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
            process.kill()
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


def _own_host() -> str:
    return socket.gethostname().split(".")[0]


def _find_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
