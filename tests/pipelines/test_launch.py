"""The processes of a step with several ranks, and the place that each finds itself in."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import mlflow_perf
from mlflow_perf.node.place import detect
from mlflow_perf.pipelines.graph import Step
from mlflow_perf.pipelines.launch import WRAPPER, Rank, make_search_path, name_python, plan_ranks
from mlflow_perf.pipelines.processes import Limits, run_ranks


def _ranks(distribution: str | None, instances: int, processes: int, **environ: str) -> list[Rank]:
    step = Step(
        "s", "c", "true", None, instances=instances, processes=processes, distribution=distribution
    )
    return plan_ranks(step, {"PATH": "/nonexistent", **environ})


@pytest.mark.parametrize("kind", ["mpi", "pytorch"])
@pytest.mark.parametrize(("instances", "processes"), [(1, 3), (2, 1), (2, 2), (3, 2)])
def test_each_rank_finds_its_node(kind: str, instances: int, processes: int) -> None:
    """Every instance is one node with one sampler, without an MPI on the machine too."""
    places = [detect(r.environment) for r in _ranks(kind, instances, processes)]
    assert [p.rank for p in places] == list(range(instances * processes))
    assert [p.index for p in places] == [r // processes for r in range(instances * processes)]
    assert {p.count for p in places} == {instances}
    assert [p.index for p in places if p.samples] == list(range(instances))


def test_one_command_is_one_process() -> None:
    """A step without a distribution is started as it is."""
    assert _ranks(None, 1, 1) == [Rank(("bash", "-c", "true"), {}, "std_log.txt")]


def test_parsls_own_launcher_goes_first() -> None:
    """Where Parsl's MPI mode gave nodes, its prefix starts the ranks on them."""
    (rank,) = _ranks("mpi", 2, 2, PARSL_MPI_PREFIX="mpiexec -n 4 -ppn 2 -hosts a,b")
    assert rank.environment == {"MLFLOW_PERF_RANKS_PER_NODE": "2"}
    assert rank.command[:8] == ("mpiexec", "-n", "4", "-ppn", "2", "-hosts", "a,b", "bash")


def test_a_step_of_one_rank_goes_to_its_node() -> None:
    """In a block of several nodes, a step runs directly on the node that Parsl gave it."""
    (there,) = _ranks(None, 1, 1, PARSL_MPI_PREFIX="mpiexec -n 1 -ppn 1 -hosts other")
    assert there.command[:2] == ("mpiexec", "-n")
    here = f"mpiexec -n 1 -ppn 1 -hosts {socket.gethostname()}"
    for prefix in (here, "mpiexec -n 1"):
        assert _ranks(None, 1, 1, PARSL_MPI_PREFIX=prefix)[0].command[0] == "bash"


def test_a_wrapper_that_a_launcher_starts_is_told_its_file() -> None:
    """Its options come after its own words, wherever these are."""
    wrapper = (*WRAPPER, "--name", "c", "--", "env")
    launcher = ("srun", "--nodelist", "other")
    for words in ((), launcher):
        rank = Rank((*words, *wrapper, "bash"), {}, "std_log.txt").follow(Path("ended"))
        end_file = ("--end-file", "ended")
        assert rank.command == (*words, *WRAPPER, *end_file, *wrapper[len(WRAPPER) :], "bash")


@pytest.mark.parametrize(("launcher", "heeds"), [("/usr/bin/srun", True), ("mpiexec", False)])
def test_a_task_of_srun_is_told_to_end_itself(launcher: str, heeds: bool) -> None:
    """`srun` would kill it at once, where other launchers pass the signal on."""
    wrapper = (*WRAPPER, "--name", "c", "--")
    prefix = {"PARSL_MPI_PREFIX": f"{launcher} --nodelist other", "PATH": ""}
    (rank,) = plan_ranks(Step("s", "c", "true", None), prefix, wrapper=wrapper)
    assert (rank.heeds_stop, "--heed-stop" in rank.command) == (heeds, heeds)
    assert rank.command[:3] == (launcher, "--nodelist", "other")


@pytest.mark.parametrize("option", ["-hosts", "--nodelist"])
@pytest.mark.parametrize("variable", ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"])
def test_torch_finds_its_place_on_parsls_nodes(option: str, variable: str) -> None:
    """The launcher's variables of a rank become those that torch.distributed reads."""
    prefix = f"mpiexec -n 4 -ppn 2 {option} a,b"
    (start,) = _ranks("pytorch", 2, 2, PARSL_MPI_PREFIX=prefix)
    assert start.environment["MASTER_ADDR"] == "a"
    script = start.command[-1].removesuffix("true") + "echo $RANK $LOCAL_RANK $NODE_RANK"
    done = subprocess.run(
        ["bash", "-c", script], env=start.environment | {variable: "3"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["3", "1", "1"]


def _read_tasks(ranks: list[dict[str, str]]) -> list[tuple[str, int]]:
    tasks = [json.loads(rank["TF_CONFIG"])["task"] for rank in ranks]
    return [(task["type"], task["index"]) for task in tasks]


def test_tensorflow_finds_its_workers_and_servers() -> None:
    """Each rank has `TF_CONFIG`: the same cluster and its own task, workers before servers."""
    step = Step("s", "c", "true", None, instances=3, servers=1, distribution="tensorflow")
    expected = [("worker", 0), ("worker", 1), ("ps", 0)]
    here = [rank.environment for rank in plan_ranks(step, {"PATH": "/nonexistent"})]
    assert _read_tasks(here) == expected
    assert [(p.index, p.count) for p in map(detect, here)] == [(0, 3), (1, 3), (2, 3)]
    (cluster,) = {json.dumps(json.loads(rank["TF_CONFIG"])["cluster"]) for rank in here}
    assert {kind: len(found) for kind, found in json.loads(cluster).items()} == {
        "worker": 2,
        "ps": 1,
    }
    prefix = {"PARSL_MPI_PREFIX": "srun --nodelist a,b,c"}
    (start,) = plan_ranks(step, {"PATH": "/nonexistent", **prefix})
    script = start.command[-1].removesuffix("true") + "echo $TF_CONFIG"
    told = [
        subprocess.run(
            ["bash", "-c", script], env=start.environment | {"SLURM_PROCID": str(rank)},
            capture_output=True, text=True, check=True,
        ).stdout
        for rank in range(3)
    ]  # fmt: skip
    assert _read_tasks([{"TF_CONFIG": text} for text in told]) == expected
    hosts = json.loads(told[0])["cluster"]
    assert [a.partition(":")[0] for a in (*hosts["worker"], *hosts["ps"])] == ["a", "b", "c"]


ALL_REDUCE = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
from mlflow_perf.node.place import detect
node = detect()
print(node.index, node.count, node.local_rank, total.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("instances", "processes"), [(2, 1), (2, 2)])
def test_torch_computes_over_the_ranks(
    tmp_path: Path, torch_python: str, instances: int, processes: int
) -> None:
    """Real torch.distributed: the ranks of all instances add up their numbers."""
    (tmp_path / "script.py").write_text(ALL_REDUCE)
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(mlflow_perf.__file__).parents[1])}
    step = Step(
        "s", "c", f"{torch_python} script.py", None,
        instances=instances, processes=processes, distribution="pytorch",
    )  # fmt: skip
    ranks = plan_ranks(step, path)
    limits = Limits(90, tmp_path / "stop")
    ended = run_ranks(ranks, folder=tmp_path, logs=tmp_path, environ=path, limits=limits)
    assert ended.code == 0, ended.last_line
    world = instances * processes
    for rank in range(world):
        said = (tmp_path / f"rank-{rank}.txt").read_text().splitlines()[-1].split()
        place = [str(rank // processes), str(instances), str(rank % processes)]
        assert said == [*place, str(float(sum(range(world))))]


def test_an_interpreter_without_a_python_beside_it_is_python_to_the_step(tmp_path: Path) -> None:
    """`/usr/bin/python3.12` runs the step's `python`, with the packages of its environment."""
    own = Path(sys.executable)
    assert name_python(own, tmp_path / "unused") == [own.parent]
    assert not (tmp_path / "unused").exists()

    lone = tmp_path / "an env" / "bin" / "python3.99"
    lone.parent.mkdir(parents=True)
    lone.symlink_to(own.resolve())
    (lone.parent.parent / "pyvenv.cfg").write_text(f"home = {own.resolve().parent}\n")
    path = make_search_path({"PATH": ""}, *name_python(lone, tmp_path / "names"))
    for name in ("python", "python3"):
        command = [name, "-c", "import sys; print(sys.prefix, *sys.argv[1:])", "a b"]
        said = subprocess.check_output(["/usr/bin/env", *command], env={"PATH": path}, text=True)
        assert said == f"{lone.parent.parent} a b\n"


def test_the_wrapper_takes_no_module_from_the_folder_of_the_step(tmp_path: Path) -> None:
    """A step may have a file `secrets.py`: it is not ours, and does not run before the step."""
    for name in ("secrets", "types", "json", "click", "mlflow", "mlflow_perf", "sys"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    command = [*WRAPPER[:3], "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:11]) == (0, "mlflow-perf"), done.stderr
