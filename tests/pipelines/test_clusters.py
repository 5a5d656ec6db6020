"""A cluster of two emulated hosts: Parsl's MPI mode, MPICH over both, one run per step.

What stands for the batch system is a list of nodes, as PBS leaves one, and a remote shell to UTS
namespaces of this machine. Parsl, its workers, MPICH's launcher and proxies are the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mlflow_perf
from mlflow_perf.cli import main
from mlflow_perf.pipelines.launch import make_search_path

pytest.importorskip("parsl")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

SSH = """\
#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
host="$1"; shift
exec unshare --uts bash -c "hostname $host; exec $*"
"""
CONFIG = """
from parsl.config import Config
from parsl.executors import MPIExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import LocalProvider

config = Config(
    executors=[
        MPIExecutor(
            label="pbs", address="127.0.0.1", mpi_launcher="mpiexec", max_workers_per_block=4,
            provider=LocalProvider(
                init_blocks=1, max_blocks=1, launcher=SimpleLauncher(),
                worker_init="export PBS_NODEFILE={nodes} HYDRA_LAUNCHER=ssh "
                "HYDRA_LAUNCHER_EXEC={ssh} PATH={bin}:$PATH",
            ),
        )
    ],
    run_dir={run_dir!r}, strategy="none", usage_tracking=0,
)
"""
SCRIPT = """
import argparse, json, os, time
from pathlib import Path
import mlflow_perf
from mlflow_perf.node.place import detect

parser = argparse.ArgumentParser()
for flag in ("--rows", "--kind", "--fast", "--rate", "--folder", "--file", "--out", "--one"):
    parser.add_argument(flag)
args = parser.parse_args()
node = detect()
names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR")
facts = {"place": [node.index, node.count, node.local_rank, node.hostname]}
facts["torch"] = [os.environ.get(name) for name in names]
Path(args.out, f"{node.rank}.json").write_text(json.dumps(facts))
Path(args.one).write_text("")
if args.kind == "b":
    with mlflow_perf.report("rank") as perf:
        with perf.time("work"):
            print("a rank at work")
        # Those of `mpi` have no time to wait for each other's operations at their end.
        Path(args.out, f"{node.rank}.done").touch()
        until = time.monotonic() + 100
        while len(list(Path(args.out).glob("*.done"))) < node.world_size:
            assert time.monotonic() < until
            time.sleep(0.01)
"""
PIPELINE = """
    @dsl.pipeline(experiment_name="cluster")
    def cluster():
        one, two = make(), make()  # `mpi` waits for the nodes of both
        mpi = make(kind="b")
        mpi.distribution = MpiDistribution(process_count_per_instance=2)
        mpi.resources = {"instance_count": 2}
        mpi.environment_variables = {"MLFLOW_PERF_EXIT_TIMEOUT": "0.01"}
        torch = make(kind="b", folder=mpi.outputs.out)
        torch.distribution = PyTorchDistribution(process_count_per_instance=1)
        torch.resources = {"instance_count": 2}
        alone = make(folder=torch.outputs.out)
"""


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory,
    write_files: Callable[[Path, str, str], Path],
    _migrated_store: Path,
) -> Any:
    """What the command printed as JSON, and the folder of the steps' work."""
    if shutil.which("mpiexec.hydra", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("needs pip install mpich")
    if not shutil.which("unshare") or subprocess.call(["unshare", "--uts", "true"]):
        pytest.skip("needs the right to make a UTS namespace")
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    (folder / "nodes").write_text("nodea\nnodeb\n")
    places = {"nodes": folder / "nodes", "ssh": folder / "ssh", "run_dir": str(folder / "parsl")}
    (folder / "config.py").write_text(CONFIG.format(bin=Path(sys.executable).parent, **places))
    path = write_files(folder, SCRIPT, PIPELINE)
    (folder / "store").mkdir()
    shutil.copy(_migrated_store, folder / "store" / "mlflow.db")
    source = str(Path(mlflow_perf.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", source)
        patch.setenv("PATH", make_search_path(os.environ))
        patch.setenv("MLFLOW_TRACKING_URI", "set by the command")
        patch.setenv("MLFLOW_PERF_METRICS", "all")
        on = ["--to", str(folder / "store"), "--on", str(folder / "config.py")]
        done = CliRunner().invoke(main, ["pipeline", "run", str(path), "--json", *on])
    assert done.exit_code == 0, done.output
    (work,) = (folder / "store" / "work").iterdir()
    return json.loads(done.stdout), work


def _facts(work: Path, step: str, key: str) -> list[Any]:
    files = sorted((work / step / "outputs" / "out").glob("*.json"))
    return [json.loads(file.read_text())[key] for file in files]


def test_mpi_ranks_run_on_the_nodes_that_parsl_gives(ran: Any) -> None:
    """Two ranks on each host, each host one node of the job."""
    hosts = _facts(ran[1], "mpi", "place")
    assert sorted(h[3] for h in hosts) == ["nodea", "nodea", "nodeb", "nodeb"]
    assert sorted(h[:3] for h in hosts) == [[0, 2, 0], [0, 2, 1], [1, 2, 0], [1, 2, 1]]
    assert len({(h[0], h[3]) for h in hosts}) == 2


def test_torch_ranks_run_there_too(ran: Any) -> None:
    """Ranks of `pytorch` are spread over the nodes and know each other's first."""
    hosts = {h[3] for h in _facts(ran[1], "torch", "place")}
    assert hosts == {"nodea", "nodeb"}
    torch = _facts(ran[1], "torch", "torch")
    assert [t[:4] for t in torch] == [["0", "0", "0", "2"], ["1", "0", "1", "2"]]
    assert len({t[4] for t in torch}) == 1


def test_a_step_of_one_node_gets_one(ran: Any) -> None:
    """A step without a distribution runs on the node that it was given, as a job of its own."""
    ((index, count, _, host),) = _facts(ran[1], "alone", "place")
    assert (index, count) == (0, 1)
    assert host in ("nodea", "nodeb")


def test_both_nodes_report_to_the_steps_run(ran: Any) -> None:
    """One MLflow run per step, with the figures of every node in it.

    Those of `mpi` are sent by the step: its ranks have no time for it.
    """
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{ran[1].parents[1]}/mlflow.db")
    steps = {s["step"]: s for s in ran[0]["steps"]}
    nodes = {"one": 1, "two": 1, "mpi": 2, "torch": 2, "alone": 1}
    assert {name: s["nodes"] for name, s in steps.items()} == nodes
    for step, each in (("mpi", 2.0), ("torch", 1.0)):
        counted = client.get_metric_history(steps[step]["run_id"], "ops/work/count")
        assert {m.step: m.value for m in counted} == {0: each, 1: each}, step
