"""Real launches, one per launcher that can be had: Open MPI, MPICH, torchrun, Dask and Ray.

torch and Ray are large, and in no extra of ours: these tests find them in an environment of its
own, whose interpreter `LAUNCHERS_PYTHON` names. `make test-launchers` makes one and runs them.
Parsl's pools are in `tests/pipelines`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import mlflow_perf

pytestmark = pytest.mark.e2e

_LAUNCHERS = os.environ.get("LAUNCHERS_PYTHON", sys.executable)
_SOURCE = str(Path(mlflow_perf.__file__).parents[1])


PRINT = (
    "import json; from mlflow_perf.node.place import detect; print(json.dumps(detect().as_dict()))"
)


def _launch(*command: str, **extra: str) -> list[dict[str, object]]:
    environ = {**os.environ, **extra}
    done = subprocess.run(
        [*command, sys.executable, "-c", PRINT],
        env=environ, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    # Launchers may put the lines of two ranks into one.
    found = [json.loads(block) for block in re.findall(r"\{[^{}]*\}", done.stdout)]
    return sorted(found, key=lambda block: block["rank"])


def _mpich() -> str:
    path = Path(sys.executable).with_name("mpiexec.hydra")
    return str(path) if path.exists() else ""


@pytest.mark.skipif(not _mpich(), reason="needs pip install mpich")
def test_a_real_launch_of_mpich() -> None:
    """Hydra's ranks on one host are one node; with the setting, each is a node of its own."""
    ranks = _launch(_mpich(), "-n", "2")
    assert [(b["launcher"], b["rank"], b["local_rank"], b["index"]) for b in ranks] == [
        ("mpich", 0, 0, 0),
        ("mpich", 1, 1, 0),
    ]
    apart = _launch(_mpich(), "-n", "2", MLFLOW_PERF_RANKS_PER_NODE="1")
    assert [(b["index"], b["count"], b["local_rank"]) for b in apart] == [(0, 2, 0), (1, 2, 0)]


@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs Debian's openmpi-bin")
def test_a_real_launch_of_open_mpi() -> None:
    """Open MPI's ranks on one host are one node."""
    ranks = _launch("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2")
    assert [(b["launcher"], b["rank"], b["local_rank"], b["index"]) for b in ranks] == [
        ("openmpi", 0, 0, 0),
        ("openmpi", 1, 1, 0),
    ]


SSH = """\
#!/bin/bash
# What a launcher takes for ssh: the host is a UTS namespace of its own on this machine.
while [[ "$1" == -* ]]; do shift; done
host="$1"; shift
exec unshare --uts bash -c "hostname $host; exec $*"
"""


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    """A remote shell to hosts that are emulated; skips where this user may not make them."""
    can = (
        shutil.which("unshare")
        and not subprocess.run(
            ["unshare", "--uts", "hostname", "other"], capture_output=True, check=False
        ).returncode
    )
    if not can:
        pytest.skip("needs the right to make a UTS namespace")
    path = tmp_path / "ssh"
    path.write_text(SSH)
    path.chmod(0o755)
    return str(path)


TWO_HOSTS = [("nodea", 0, 0), ("nodea", 0, 1), ("nodeb", 1, 0), ("nodeb", 1, 1)]


UNEQUAL = [("nodea", 0, 0), ("nodea", 0, 1), ("nodea", 0, 2), ("nodeb", 1, 0)]


def _places(blocks: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return sorted((b["hostname"], b["index"], b["local_rank"]) for b in blocks)


def _seen(blocks: list[dict[str, object]]) -> list[tuple[object, ...]]:
    assert {b["count"] for b in blocks} == {2}
    return [(b["hostname"], b["index"], b["local_rank"]) for b in blocks]


@pytest.mark.skipif(not _mpich(), reason="needs pip install mpich")
def test_mpich_over_two_hosts(ssh: str) -> None:
    """Each host is a node, with one sampler."""
    over = ("-hosts", "nodea,nodeb", "-launcher", "ssh", "-launcher-exec", ssh)
    assert _seen(_launch(_mpich(), *over, "-n", "4", "-ppn", "2")) == TWO_HOSTS


@pytest.mark.skipif(not _mpich(), reason="needs pip install mpich")
@pytest.mark.parametrize(
    ("hosts", "options", "expected"),
    [
        ("nodea,nodeb", ("-ppn", "1"), TWO_HOSTS),
        ("nodea:3,nodeb:1", (), UNEQUAL),
    ],
)
def test_mpich_in_turns_and_on_unequal_hosts(
    ssh: str, hosts: str, options: tuple[str, ...], expected: list[tuple[object, ...]]
) -> None:
    """Hydra's proxies are numbered host by host: indices have no gaps, whatever the layout."""
    over = ("-hosts", hosts, "-launcher", "ssh", "-launcher-exec", ssh)
    assert _places(_launch(_mpich(), *over, "-n", "4", *options)) == expected


@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs Debian's openmpi-bin")
def test_open_mpi_over_unequal_hosts(ssh: str) -> None:
    """Open MPI's daemons are numbered host by host, and the host of mpirun itself is left out."""
    over = ("--host", "nodea:3,nodeb:1", "--mca", "plm_rsh_agent", ssh)
    found = _launch("mpirun.openmpi", "--allow-run-as-root", *over, "-n", "4")
    assert _places(found) == UNEQUAL
    assert {b["count"] for b in found} == {2}


@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="needs Debian's openmpi-bin")
@pytest.mark.parametrize("by", ["slot", "node"])
def test_open_mpi_over_two_hosts(ssh: str, by: str) -> None:
    """Each host is a node, whether its ranks follow each other or are dealt in turns."""
    over = ("--host", "nodea:2,nodeb:2", "--map-by", by, "--mca", "plm_rsh_agent", ssh)
    found = _launch("mpirun.openmpi", "--allow-run-as-root", *over, "-n", "4")
    assert sorted(_seen(found)) == TWO_HOSTS


def _python_with(module: str) -> str:
    """Return the interpreter of the environment that has a module."""
    look = [_LAUNCHERS, "-c", f"import {module}"]
    if subprocess.run(look, capture_output=True, check=False).returncode:
        pytest.skip(f"needs {module}, in an environment of its own: make test-launchers")
    return _LAUNCHERS


@pytest.fixture
def torchrun() -> list[str]:
    """The start of a torchrun command line that does without names of hosts."""
    return [_python_with("torch"), "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"]


def _told(*command: str, **extra: str) -> list[dict[str, object]]:
    environ = {**os.environ, "PYTHONPATH": _SOURCE, "OMP_NUM_THREADS": "1", **extra}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(block) for block in re.findall(r"\{\"index[^{}]*\}", done.stdout)]
    return sorted(found, key=lambda block: block["rank"])


def test_torchrun_on_one_host(torchrun: list[str], tmp_path: Path) -> None:
    """One agent is one node, with as many ranks as it starts."""
    (tmp_path / "print.py").write_text(PRINT)
    found = _told(*torchrun, "--nproc-per-node", "2", str(tmp_path / "print.py"))
    assert [(b["launcher"], b["index"], b["count"], b["local_rank"]) for b in found] == [
        ("torchrun", 0, 1, 0),
        ("torchrun", 0, 1, 1),
    ]


# The script's ranks add up their numbers: they have really found each other.
ADD_UP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0])
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
dist.destroy_process_group()
"""
AGENT = """
port=$1; shift
exec "$@" --nnodes 2 --node-rank "$PMI_RANK" --nproc-per-node 2 --master-port "$port" {script}
"""


def _agents(torchrun: list[str], tmp_path: Path, *over: str) -> list[dict[str, object]]:
    """Return what the ranks of two agents tell that MPICH has started."""
    if not _mpich():
        pytest.skip("needs pip install mpich")
    script = tmp_path / "print.py"
    script.write_text(ADD_UP + PRINT)
    (tmp_path / "agent.sh").write_text(AGENT.format(script=script))
    agent = ["bash", str(tmp_path / "agent.sh"), str(_free_port()), *torchrun]
    return _told(_mpich(), *over, "-n", "2", *agent, GLOO_SOCKET_IFNAME="lo")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_torchrun_over_two_hosts(torchrun: list[str], tmp_path: Path, ssh: str) -> None:
    """An agent on each of two hosts: each is a node, and the ranks compute together."""
    over = ("-hosts", "nodea,nodeb", "-launcher", "ssh", "-launcher-exec", ssh, "-ppn", "1")
    found = _agents(torchrun, tmp_path, *over)
    assert {b["launcher"] for b in found} == {"torchrun"}
    assert _seen(found) == TWO_HOSTS


def test_two_agents_on_one_host_are_one_node(torchrun: list[str], tmp_path: Path) -> None:
    """Agents are groups, not nodes: their launcher's variables show that they share a host."""
    found = _agents(torchrun, tmp_path)
    assert [(b["index"], b["count"], b["local_rank"]) for b in found] == [
        (0, 1, local) for local in range(4)
    ]


DASK = """
import distributed

def who():
    from mlflow_perf.node.place import detect
    return detect().as_dict()

if __name__ == "__main__":
    place = {"n_workers": 1, "dashboard_address": None, "host": "127.0.0.1"}
    with distributed.LocalCluster(**place) as cluster, distributed.Client(cluster) as client:
        print(__import__("json").dumps(client.submit(who).result(60)))
"""
RAY = """
import json, ray

def who():
    from mlflow_perf.node.place import detect
    return detect().as_dict()

ray.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1")
print(json.dumps(ray.get(ray.remote(who).remote(), timeout=90)))
ray.shutdown()
"""


@pytest.mark.parametrize(
    ("module", "launcher", "script"), [("distributed", "dask", DASK), ("ray", "ray", RAY)]
)
def test_a_task_of_a_pool(module: str, launcher: str, script: str, tmp_path: Path) -> None:
    """A task of a pool's worker is a job of one node, whichever worker it lands on."""
    (tmp_path / "script.py").write_text(script)
    (found,) = _told(_python_with(module), str(tmp_path / "script.py"))
    assert (found["launcher"], found["index"], found["count"]) == (launcher, 0, 1)


TWO_NODES = """
import pathlib, sys, time
import mlflow_perf
from mlflow_perf.node.place import detect

busy, here = detect().index == 1, pathlib.Path(sys.argv[0]).parent
with mlflow_perf.report("ranks", interval=0.05) as perf:
    (here / f"{detect().rank}.came").touch()
    while len(list(here.glob("*.came"))) < 4:  # a barrier, as training has one
        time.sleep(0.05)
    with perf.time("work"):
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            busy or time.sleep(0.05)
    perf.add_counter("ranks")
"""


@pytest.mark.skipif(not _mpich(), reason="needs pip install mpich")
def test_two_hosts_report_to_one_run_of_a_server(ssh: str, server: str, tmp_path: Path) -> None:
    """All ranks of both hosts log to one run of a real server at once; the whole has both nodes."""
    from mlflow import MlflowClient

    from mlflow_perf import load

    client = MlflowClient(server)
    run_id = client.create_run("0").info.run_id
    (tmp_path / "script.py").write_text(TWO_NODES)
    hosts = ("-hosts", "nodea:1,nodeb:3", "-launcher", "ssh", "-launcher-exec", ssh)
    variables = {
        "MLFLOW_TRACKING_URI": server, "MLFLOW_RUN_ID": run_id, "PYTHONPATH": _SOURCE,
        "MLFLOW_PERF_EXIT_TIMEOUT": "60", "MLFLOW_PERF_METRICS": "all",
    }  # fmt: skip
    done = subprocess.run(
        [_mpich(), *hosts, "-n", "4", sys.executable, str(tmp_path / "script.py")],
        env=os.environ | variables, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counted = client.get_metric_history(run_id, "ops/work/count")
    assert {m.step: m.value for m in counted} == {0: 1.0, 1: 3.0}
    document = load(run_id)
    assert [node.node["hostname"] for node in document.nodes.values()] == ["nodea", "nodeb"]
    run = client.get_run(run_id)
    assert run.data.metrics["run_node_count"] == 2
    assert run.data.metrics["run_imbalance_pct"] >= 0
    assert run.info.status == "RUNNING"
