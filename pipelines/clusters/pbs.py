"""Parsl on PBS Professional, as on the machines of Argonne (`--on` this file).

Copy it and set what is marked. The work folder (`./pipeline-runs`) and this Python have to be on
a file system that the compute nodes see; `worker_init` has to bring the environment that holds
mlflow-perf.
"""

import os

from parsl.addresses import address_by_interface
from parsl.config import Config
from parsl.executors import MPIExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import PBSProProvider

config = Config(
    executors=[
        MPIExecutor(
            label="pbs",
            # Set: the interface by which compute nodes reach this host.
            address=address_by_interface(os.environ.get("PARSL_INTERFACE", "lo")),
            mpi_launcher="mpiexec",
            max_workers_per_block=4,
            provider=PBSProProvider(
                queue="debug",  # Set: your queue.
                account=None,  # Set: your project.
                nodes_per_block=2,  # Set: as many as the largest step asks for.
                cpus_per_node=64,  # Set: your nodes.
                walltime="01:00:00",
                init_blocks=0,
                max_blocks=1,
                scheduler_options="#PBS -l filesystems=home",  # Set: your file systems.
                launcher=SimpleLauncher(),
                worker_init="source $HOME/mlflow-perf/bin/activate",  # Set.
            ),
        )
    ],
    strategy="simple",
    usage_tracking=0,
)
