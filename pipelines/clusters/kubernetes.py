"""Parsl on Kubernetes: a pod per block, one node per step (`--on` this file).

Copy it and set what is marked. The image has to hold mlflow-perf, and the volume claim has to be
mounted where the work folder (`./pipeline-runs`) lies. The package `kubernetes` is needed here.
"""

import os

from parsl.addresses import address_by_interface
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import KubernetesProvider

config = Config(
    executors=[
        HighThroughputExecutor(
            label="kubernetes",
            # Set: the address by which pods reach this host.
            address=address_by_interface(os.environ.get("PARSL_INTERFACE", "lo")),
            max_workers_per_node=1,
            provider=KubernetesProvider(
                namespace="default",
                image="registry.example/mlflow-perf:latest",  # Set: your image.
                nodes_per_block=1,
                init_blocks=0,
                max_blocks=4,
                init_cpu=2,
                max_cpu=2,
                init_mem="2000Mi",
                max_mem="4000Mi",
                persistent_volumes=[("work", "/work")],  # Set: claim and mount point.
            ),
        )
    ],
    strategy="simple",
    usage_tracking=0,
)
