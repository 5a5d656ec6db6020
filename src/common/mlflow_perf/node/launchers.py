"""The launchers of parallel jobs, one row of facts each. Imports only `daemons`.

`node` does the arithmetic from a rank to a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlflow_perf.node import launcher_daemons as daemons

__all__ = ["DASK_WORKER", "LAUNCHERS", "Launcher"]


@dataclass(frozen=True, slots=True)
class Launcher:
    """One row of facts: the variables that a launcher sets in each process that it starts.

    Attributes:
        name: What the launcher is called in documents and tags.
        marks: Variables that all have to be set for this row to hold.
        rank: Variable of the number of the process.
        size: Variables of the number of processes; the first that is set counts.
        local_rank: Variable of the number of the process on its node.
        local_size: Variable of the number of processes on its node.
        node: Variable of the number of the node, where the launcher tells it.
        nodes: Variables of the number of nodes; the first that is set counts.
        job: Variable of the launcher's own name of the job.
        agrees: Variables of other launchers which, if set, must equal this row's rank: where they
            do not, this row was inherited from an outer job.
        pool: Whether it starts the workers of a pool and not the ranks of a job.
        groups: Whether it numbers groups of ranks (torchrun's agents): a group is a node only as
            long as nobody outside started several of them on one.
        daemon: Asks the launcher's own daemon for the node's index and the number of nodes; None
            where it does not tell, so that they follow from the ranks.
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


# Dask leaves nothing in the environment; `detect` puts the worker's name there under this key.
DASK_WORKER = "DASK_WORKER_NAME"
_MPI = "OMPI_COMM_WORLD_"
_JSM = "JSM_NAMESPACE_"
_MV2 = "MV2_COMM_WORLD_"

# One row per launcher; laid out as the table it is.
# fmt: off
LAUNCHERS: tuple[Launcher, ...] = (
    # Innermost first: what a scheduler set is inherited by every launcher started inside its job.
    Launcher("torchrun", ("TORCHELASTIC_RUN_ID", "RANK"), "RANK", ("WORLD_SIZE",),
             "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", ("GROUP_WORLD_SIZE",),
             "TORCHELASTIC_RUN_ID", groups=True),
    # OMPI_COMM_WORLD_NODE_RANK is a number of the process on its node: no node's index.
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
    # A pool's workers are numbered within one pool on one host: that is no rank of a job.
    Launcher("ray", ("RAY_JOB_ID",), job="RAY_JOB_ID", pool=True),
    Launcher("dask", (DASK_WORKER,), job=DASK_WORKER, pool=True),
    Launcher("parsl", ("PARSL_WORKER_RANK",), local_rank="PARSL_WORKER_RANK",
             job="PARSL_WORKER_POOL_ID", pool=True),
    # A batch script has SLURM_PROCID and SLURM_NTASKS too, but no step: there it is one process.
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
    # The number of completions is not in the environment: MLFLOW_PERF_NODE_COUNT tells it.
    Launcher("kubernetes", ("JOB_COMPLETION_INDEX",), "JOB_COMPLETION_INDEX"),
    Launcher("slurm", ("SLURM_JOB_ID",), job="SLURM_JOB_ID"),
)
# fmt: on
