"""Who am I: one test per launcher of the table, the traps, and real launches."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.errors import SettingError
from mlflow_perf.node.launchers import LAUNCHERS
from mlflow_perf.node.place import Node, count_cpus, detect, hide_launcher


def _variables(pairs: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in pairs.split())


OMPI = "OMPI_COMM_WORLD_RANK={} OMPI_COMM_WORLD_SIZE={} OMPI_COMM_WORLD_LOCAL_RANK={}"
OMPI += " OMPI_COMM_WORLD_LOCAL_SIZE={}"
HYDRA = "PMI_RANK={} PMI_SIZE={} MPI_LOCALRANKID={} MPI_LOCALNRANKS={}"
STEP = "SLURM_JOB_ID=77 SLURM_PROCID={} SLURM_STEP_NUM_TASKS={} SLURM_LOCALID={} SLURM_NODEID={}"
STEP += " SLURM_STEP_NUM_NODES={}"
TORCH = "TORCHELASTIC_RUN_ID=t1 RANK={} WORLD_SIZE={} LOCAL_RANK={} LOCAL_WORLD_SIZE={}"
TORCH += " GROUP_RANK={} GROUP_WORLD_SIZE={}"
AZURE = "AZUREML_RUN_ID=az1 AZ_BATCH_NODE_LIST=10.0.0.4;10.0.0.5;10.0.0.6 AZ_BATCHAI_NODE_IP={}"

# environment -> launcher, node index, node count, rank, local rank, world size, job id
CASES = [
    ("", ("local", 0, 1, 0, 0, 1, None)),
    (OMPI.format(5, 8, 1, 4), ("openmpi", 1, 2, 5, 1, 8, None)),
    (HYDRA.format(3, 4, 1, 2), ("mpich", 1, 2, 3, 1, 4, None)),
    (
        (
            "MV2_COMM_WORLD_RANK=3 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=1 "
            "MV2_COMM_WORLD_LOCAL_SIZE=2"
        ),
        ("mvapich", 1, 2, 3, 1, 4, None),
    ),
    (
        (
            "PALS_RANKID=6 PALS_NODEID=1 PALS_LOCAL_RANKID=2 PALS_LOCAL_SIZE=4 PMI_RANK=6 "
            "PMI_SIZE=8 PALS_APID=p9 PBS_JOBID=12.polaris"
        ),
        ("pals", 1, 2, 6, 2, 8, "12.polaris"),
    ),
    (
        (
            "JSM_NAMESPACE_RANK=6 JSM_NAMESPACE_SIZE=12 JSM_NAMESPACE_LOCAL_RANK=0 "
            "JSM_NAMESPACE_LOCAL_SIZE=6 LSB_JOBID=5"
        ),
        ("jsrun", 1, 2, 6, 0, 12, "5"),
    ),
    (STEP.format(5, 8, 1, 1, 2), ("slurm", 1, 2, 5, 1, 8, "77")),
    ("SLURM_JOB_ID=77", ("slurm", 0, 1, 0, 0, 1, "77")),
    (TORCH.format(5, 8, 1, 4, 1, 2), ("torchrun", 1, 2, 5, 1, 8, "t1")),
    ("PMI_RANK=1 PMI_SIZE=2", ("pmi", 1, 2, 1, 0, 2, None)),
    ("PMIX_RANK=2 PMIX_NAMESPACE=n1", ("pmix", 2, 3, 2, 0, 3, "n1")),
    (
        "AZUREML_RUN_ID=az1 AZUREML_NODE_COUNT=2 NODE_RANK=1 RANK=3 WORLD_SIZE=4 LOCAL_RANK=1",
        ("azureml", 1, 2, 3, 1, 4, "az1"),
    ),
    (AZURE.format("10.0.0.6"), ("azureml", 2, 3, 0, 0, 1, "az1")),
    (
        "RAY_JOB_ID=02 RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=1",
        ("ray", 1, 2, 3, 1, 4, "02"),
    ),
    ("RAY_JOB_ID=02", ("ray", 0, 1, 0, 0, 1, "02")),
    ("DASK_WORKER_NAME=w1", ("dask", 0, 1, 0, 0, 1, "w1")),
    (
        "PARSL_WORKER_RANK=3 PARSL_WORKER_COUNT=8 PARSL_WORKER_POOL_ID=p1",
        ("parsl", 0, 1, 0, 3, 1, "p1"),
    ),
    (
        "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=1",
        ("pytorch", 1, 2, 3, 1, 4, None),
    ),
    ("JOB_COMPLETION_INDEX=2 HOSTNAME=fit-2", ("kubernetes", 2, 3, 2, 0, 3, "fit")),
]

TRAPS = [
    # Open MPI's NODE_RANK counts processes on a node.
    (OMPI.format(1, 2, 0, 1) + " OMPI_COMM_WORLD_NODE_RANK=0", ("openmpi", 1, 2, 1, 0, 2, None)),
    # mpirun inside a Slurm allocation: every rank inherits the batch script's SLURM_PROCID=0.
    (
        OMPI.format(3, 4, 1, 2) + " " + STEP.format(0, 4, 0, 0, 2),
        ("openmpi", 1, 2, 3, 1, 4, "77"),
    ),
    # ... and where only PMIx tells, a rank that differs shows that Slurm's was inherited.
    (STEP.format(0, 1, 0, 0, 1) + " PMIX_RANK=3", ("pmix", 3, 4, 3, 0, 4, "77")),
    # srun with its own PMI plugin: PMI_RANK is Slurm's own, and Slurm knows the node.
    (STEP.format(3, 4, 1, 1, 2) + " PMI_RANK=3 PMI_SIZE=4", ("slurm", 1, 2, 3, 1, 4, "77")),
    # The batch script itself is one process on one node.
    (
        "SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_NODEID=0 SLURM_NNODES=2",
        ("slurm", 0, 1, 0, 0, 1, "77"),
    ),
    # Two torchrun agents on each of two nodes: GROUP_RANK 3 is node 1.
    (
        TORCH.format(7, 8, 1, 2, 3, 4) + " " + STEP.format(3, 4, 1, 1, 2),
        ("torchrun", 1, 2, 7, 3, 8, "77"),
    ),
    # Azure's list of nodes is right whatever the layout of the ranks.
    (
        AZURE.format("10.0.0.5") + " " + OMPI.format(4, 6, 1, 2),
        ("openmpi", 1, 3, 4, 1, 6, "az1"),
    ),
    # Ranks dealt to the nodes in turns.
    (
        OMPI.format(4, 6, 1, 2) + " OMPI_MCA_rmaps_base_mapping_policy=node",
        ("openmpi", 1, 3, 4, 1, 6, None),
    ),
    # A Parsl worker inside a Slurm step is a worker first.
    (
        "PARSL_WORKER_RANK=3 " + STEP.format(1, 2, 0, 1, 2),
        ("parsl", 0, 1, 0, 3, 1, "77"),
    ),
    # ... and where nobody says so, but in blocks the ranks could not be.
    (
        (
            "JSM_NAMESPACE_RANK=5 JSM_NAMESPACE_SIZE=8 JSM_NAMESPACE_LOCAL_RANK=2 "
            "JSM_NAMESPACE_LOCAL_SIZE=4"
        ),
        ("jsrun", 1, 2, 5, 2, 8, None),
    ),
    # Ray's workers are started before their job is known.
    ("RAY_JOB_ID=ffffffff", ("ray", 0, 1, 0, 0, 1, None)),
    # A launcher's value that is no number is as if it were not there.
    (OMPI.format("x", 2, 0, 1), ("local", 0, 1, 0, 0, 1, None)),
]


def _facts(node: Node) -> tuple[object, ...]:
    return (
        node.launcher, node.index, node.count, node.rank, node.local_rank, node.world_size,
        node.job_id,
    )  # fmt: skip


@pytest.mark.parametrize(("environ", "expected"), CASES, ids=[c[1][0] for c in CASES])
def test_each_launcher(environ: str, expected: tuple[object, ...]) -> None:
    """Each row of the table gives the place that its launcher means."""
    assert _facts(detect(_variables(environ))) == expected


@pytest.mark.parametrize(("environ", "expected"), TRAPS)
def test_known_traps(environ: str, expected: tuple[object, ...]) -> None:
    """What is inherited, counted otherwise or broken does not lead to another place."""
    assert _facts(detect(_variables(environ))) == expected


def test_every_row_of_the_table_has_a_case() -> None:
    """A launcher that is added to the table gets a case here."""
    assert {row.name for row in LAUNCHERS} | {"local"} == {case[1][0] for case in CASES}


def test_our_own_variables_go_first() -> None:
    """What a person says about the node wins over every launcher."""
    environ = _variables(OMPI.format(1, 2, 1, 2)) | {
        "MLFLOW_PERF_NODE": "4",
        "MLFLOW_PERF_NODE_COUNT": "6",
    }
    node = detect(environ)
    assert (node.index, node.count, node.rank) == (4, 6, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MLFLOW_PERF_NODE", "-1"),
        ("MLFLOW_PERF_NODE", "first"),
        ("MLFLOW_PERF_NODE_COUNT", "0"),
        ("MLFLOW_PERF_RANKS_PER_NODE", "1.5"),
    ],
)
def test_a_wrong_setting_of_ours_is_an_error(name: str, value: str) -> None:
    """A wrong value of our own variables is named before the job starts."""
    with pytest.raises(SettingError, match=name):
        detect({name: value})


def test_an_index_beyond_the_count_is_an_error() -> None:
    """An index that the count does not reach is a contradiction, and is said."""
    with pytest.raises(SettingError, match="MLFLOW_PERF_NODE=2"):
        detect({"MLFLOW_PERF_NODE": "2", "MLFLOW_PERF_NODE_COUNT": "2"})


@given(nodes=st.integers(1, 40), each=st.integers(1, 16))
def test_every_rank_finds_its_node(nodes: int, each: int) -> None:
    """Ranks in equal blocks: each node has exactly one sampler, and all agree on the count."""
    world = nodes * each
    places = [detect(_variables(OMPI.format(r, world, r % each, each))) for r in range(world)]
    assert [p.index for p in places] == [r // each for r in range(world)]
    assert {p.count for p in places} == {nodes}
    assert [p.index for p in places if p.samples] == list(range(nodes))


@given(world=st.integers(1, 64), each=st.integers(1, 16))
def test_ranks_per_node_makes_nodes_of_one_host(world: int, each: int) -> None:
    """MLFLOW_PERF_RANKS_PER_NODE divides the ranks, whatever the launcher says about hosts."""
    own = {"MLFLOW_PERF_RANKS_PER_NODE": str(each)}
    places = [detect(_variables(HYDRA.format(r, world, r, world)) | own) for r in range(world)]
    assert [p.index for p in places if p.samples] == list(range(-(-world // each)))
    assert {p.count for p in places} == {-(-world // each)}


@pytest.mark.parametrize("sizes", [(3, 1), (1, 3), (2, 2, 1), (4, 2, 2), (1, 1, 4)])
def test_nodes_of_unequal_size_keep_apart(sizes: tuple[int, ...]) -> None:
    """Two nodes never get one index, though only the launcher knows their number."""
    world, first, indices = sum(sizes), 0, []
    for size in sizes:
        indices.append(detect(_variables(OMPI.format(first, world, 0, size))).index)
        first += size
    assert len(set(indices)) == len(sizes)


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        (OMPI.format(1, 4, 1, 2), 2),
        (STEP.format(8, 9, 0, 2, 3) + " SLURM_STEP_TASKS_PER_NODE=4(x2),1", 1),
        (STEP.format(5, 9, 1, 1, 3) + " SLURM_STEP_TASKS_PER_NODE=4(x2),1", 4),
        (
            TORCH.format(7, 8, 1, 2, 3, 4)
            + " "
            + STEP.format(3, 4, 1, 1, 2)
            + " SLURM_STEP_TASKS_PER_NODE=2(x2)",
            4,
        ),
        (OMPI.format(8, 9, 8, 9) + " MLFLOW_PERF_RANKS_PER_NODE=4", 1),
        ("PARSL_WORKER_RANK=3", 1),
        ("", 1),
    ],
)
def test_how_many_are_on_the_node(environ: str, size: int) -> None:
    """The rank that samples knows how many others of its node to wait for."""
    assert detect(_variables(environ)).local_size == size


def test_a_worker_of_a_pool_samples() -> None:
    """Each task of a pool is a job of its own, on whichever worker it lands."""
    assert detect({"PARSL_WORKER_RANK": "3"}).samples
    assert not detect(_variables(OMPI.format(1, 2, 1, 2))).samples


def test_as_dict_is_the_block_of_the_document() -> None:
    """The block has the contract's keys and nothing that is empty."""
    node = replace(detect({}), hostname="h", cpu_count=4)
    assert node.as_dict() == {
        "index": 0, "count": 1, "rank": 0, "local_rank": 0, "world_size": 1,
        "hostname": "h", "launcher": "local", "cpu_count": 4,
    }  # fmt: skip


@pytest.mark.parametrize("environ", [case[0] for case in CASES + TRAPS])
def test_without_launcher_leaves_a_job_of_its_own(environ: str) -> None:
    """A command that is no rank of the outer job finds one node, and keeps the other variables."""
    left = hide_launcher(_variables(environ) | {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"})
    node = detect(left)
    assert (node.index, node.count, node.local_rank, node.world_size) == (0, 1, 0, 1)
    assert (left["PATH"], left["CUDA_VISIBLE_DEVICES"]) == ("/bin", "1")


def test_a_dask_worker_is_found_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask sets nothing in the environment; its module, where it is loaded, knows the worker."""
    worker = SimpleNamespace(get_worker=lambda: SimpleNamespace(name="tcp-3"))
    monkeypatch.setitem(sys.modules, "distributed.worker", worker)
    node = detect({})
    assert (node.launcher, node.job_id, node.samples) == ("dask", "tcp-3", True)


def test_a_process_that_only_loads_dask_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of a Dask cluster is not one of its workers."""

    def nobody() -> None:
        raise ValueError("No worker found")

    monkeypatch.setitem(sys.modules, "distributed.worker", SimpleNamespace(get_worker=nobody))
    assert detect({}).launcher == "local"


def test_steps_tries_and_tasks_of_a_job_are_told_apart() -> None:
    """An array's task has the id that squeue shows; a step and a repetition have own keys."""
    step = {"SLURM_JOB_ID": "13", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_NODEID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_PARTITION": "short"}  # fmt: skip
    array = {**step, "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}
    assert detect(step).tags() | {
        "mlflow_perf.job_step": "0",
        "mlflow_perf.partition": "short",
    } == (detect(step).tags())
    assert detect(array).job_id == "10_3"
    changes: tuple[dict[str, str], ...] = (
        {},
        {"SLURM_STEP_ID": "1"},
        {"SLURM_RESTART_COUNT": "1"},
        {"SLURM_JOB_ID": "14"},
    )
    assert len({detect({**step, **change}).job_key for change in changes}) == len(changes)
    assert detect({**step, "SLURM_PROCID": "1"}).job_key == detect(step).job_key
    assert detect({}).job_key is None


def test_the_facts_by_which_a_scheduler_is_asked_for_a_reason() -> None:
    """A group or a pipeline has no other facts of a node."""
    job = replace(detect({}), job_id="7", job_step="0").name_job()
    assert (job["job_id"], job["job_step"]) == ("7", "0")
    assert set(detect({}).name_job()) == {"hostname"}


def test_the_cpus_are_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may give libraries another number, as `PYTHON_CPU_COUNT` does from Python 3.13 on."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1234)
    count_cpus.cache_clear()
    assert count_cpus() == os.sysconf("SC_NPROCESSORS_ONLN")
