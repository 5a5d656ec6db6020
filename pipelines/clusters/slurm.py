"""Parsl on Slurm: one node per step, and several for steps of several nodes (`--on` this file).

Copy it and set what is marked. The work folder (`./pipeline-runs`) and this Python have to be on
a file system that the compute nodes see; `worker_init` has to bring the environment that holds
mlflow-perf.
"""

import os

from parsl.addresses import address_by_interface
from parsl.config import Config
from parsl.executors import MPIExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import SlurmProvider

config = Config(
    executors=[
        MPIExecutor(
            label="slurm",
            # Set: the interface by which compute nodes reach this host.
            address=address_by_interface(os.environ.get("PARSL_INTERFACE", "lo")),
            mpi_launcher="srun",
            # How many steps may run at once within one allocation.
            max_workers_per_block=4,
            provider=SlurmProvider(
                partition="compute",  # Set: your partition.
                account=None,  # Set: your account, where the site wants one.
                nodes_per_block=2,  # Set: as many as the largest step asks for.
                walltime="01:00:00",
                init_blocks=0,
                max_blocks=1,
                exclusive=True,
                launcher=SimpleLauncher(),
                worker_init="module load mpich; source $HOME/mlflow-perf/bin/activate",  # Set.
            ),
        )
    ],
    strategy="simple",
    usage_tracking=0,
)
