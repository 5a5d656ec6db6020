"""The launchers of parallel jobs, one row of facts each; `place` computes the node from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlflow_perf.node import launcher_daemons as daemons


@dataclass(frozen=True, slots=True)
class Launcher:
    """One row of facts: the variables that a launcher sets in each process that it starts.

    Attributes:
        name: Name of the launcher in documents and tags.
        marks: Variables that must all be set for this row to apply.
        rank: Variable of the number of the process.
        size: Variables of the number of processes; the first one set counts.
        local_rank: Variable of the number of the process on its node.
        local_size: Variable of the number of processes on its node.
        node: Variable of the index of the node, if the launcher sets one.
        nodes: Variables of the number of nodes; the first one set counts.
        job: Variable of the launcher's own id of the job.
        agrees: Variables of other launchers that must equal this row's rank if they are set. If one
            differs, this row's variables were inherited from an outer job.
        pool: Whether it starts the workers of a pool and not the ranks of a job.
        groups: Whether it numbers groups of ranks (torchrun's agents). A group is a node, unless an
            outer launcher started several groups on one node.
        daemon: Returns the node's index and the number of nodes from the launcher's own daemon, or
            None; then they follow from the ranks.
    """

    name: str
    marks: tuple[str, ...]
    rank: str = ""
    size: tuple[str, ...] = ()
    local_rank: str = ""
    local_size: str = ""
    node: str = ""
    nodes: tuple[str, ...] = ()
    job: str = ""
    agrees: tuple[str, ...] = ()
    pool: bool = False
    groups: bool = False
    daemon: Callable[[Mapping[str, str]], tuple[int, int] | None] | None = None


# Dask sets no variable; `detect` puts the worker's name into the environment under this key.
DASK_WORKER = "DASK_WORKER_NAME"
_MPI = "OMPI_COMM_WORLD_"
_JSM = "JSM_NAMESPACE_"
_MV2 = "MV2_COMM_WORLD_"

# fmt: off
LAUNCHERS: tuple[Launcher, ...] = (
    # Innermost first: every launcher inherits the variables of the scheduler whose job it is in.
    Launcher("torchrun", ("TORCHELASTIC_RUN_ID", "RANK"), "RANK", ("WORLD_SIZE",),
             "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", ("GROUP_WORLD_SIZE",),
             "TORCHELASTIC_RUN_ID", groups=True),
    # OMPI_COMM_WORLD_NODE_RANK numbers the processes on a node; it is not the node's index.
    Launcher("openmpi", (_MPI + "RANK", _MPI + "SIZE"), _MPI + "RANK", (_MPI + "SIZE",),
             _MPI + "LOCAL_RANK", _MPI + "LOCAL_SIZE", job="PMIX_NAMESPACE",
             daemon=daemons.open_mpi),
    Launcher("mpich", ("PMI_RANK", "MPI_LOCALRANKID"), "PMI_RANK", ("PMI_SIZE",),
             "MPI_LOCALRANKID", "MPI_LOCALNRANKS", daemon=daemons.hydra),
    Launcher("mvapich", (_MV2 + "RANK",), _MV2 + "RANK", (_MV2 + "SIZE",),
             _MV2 + "LOCAL_RANK", _MV2 + "LOCAL_SIZE"),
    Launcher("pals", ("PALS_RANKID", "PALS_NODEID"), "PALS_RANKID", ("PMI_SIZE",),
             "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID", job="PALS_APID"),
    Launcher("jsrun", (_JSM + "RANK",), _JSM + "RANK", (_JSM + "SIZE",),
             _JSM + "LOCAL_RANK", _JSM + "LOCAL_SIZE"),
    Launcher("ray", ("RAY_JOB_ID", "RANK", "WORLD_SIZE"), "RANK", ("WORLD_SIZE",),
             "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", job="RAY_JOB_ID"),
    # The workers of a pool are numbered per pool and host; these numbers are not ranks of a job.
    Launcher("ray", ("RAY_JOB_ID",), job="RAY_JOB_ID", pool=True),
    Launcher("dask", (DASK_WORKER,), job=DASK_WORKER, pool=True),
    Launcher("parsl", ("PARSL_WORKER_RANK",), local_rank="PARSL_WORKER_RANK",
             job="PARSL_WORKER_POOL_ID", pool=True),
    # A batch script has SLURM_PROCID and SLURM_NTASKS too, but it is one process without a step.
    Launcher("slurm", ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NODEID"), "SLURM_PROCID",
             ("SLURM_STEP_NUM_TASKS",), "SLURM_LOCALID", "", "SLURM_NODEID",
             ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
             "SLURM_JOB_ID", ("PMIX_RANK", "PMI_RANK")),
    Launcher("pmi", ("PMI_RANK", "PMI_SIZE"), "PMI_RANK", ("PMI_SIZE",)),
    Launcher("pmix", ("PMIX_RANK",), "PMIX_RANK", job="PMIX_NAMESPACE"),
    Launcher("azureml", ("AZUREML_RUN_ID", "NODE_RANK"), "RANK", ("WORLD_SIZE",), "LOCAL_RANK",
             "LOCAL_WORLD_SIZE", "NODE_RANK", ("AZUREML_NODE_COUNT",), "AZUREML_RUN_ID"),
    Launcher("azureml", ("AZUREML_RUN_ID",), nodes=("AZUREML_NODE_COUNT",), job="AZUREML_RUN_ID"),
    Launcher("pytorch", ("RANK", "WORLD_SIZE", "LOCAL_RANK"), "RANK", ("WORLD_SIZE",),
             "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", ("NNODES",)),
    # The number of completions is not in the environment; MLFLOW_PERF_NODE_COUNT can give it.
    Launcher("kubernetes", ("JOB_COMPLETION_INDEX",), "JOB_COMPLETION_INDEX"),
    Launcher("slurm", ("SLURM_JOB_ID",), job="SLURM_JOB_ID"),
)
# fmt: on
