"""A job's protobuf files are in one pool with MLflow's."""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from mlflow_perf.tracking.renamed_protos import _RenamingPool

_LOAD = """
from google.protobuf import descriptor_pb2, descriptor_pool
from mlflow_perf.tracking.mlflow_call import MlflowCall

def add(name):
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop")
    return descriptor_pool.Default().AddSerializedFile(file.SerializeToString())

def load():
    MlflowCall(lambda: None, name="load").result(120)
"""

_LATER = """
default = descriptor_pool.Default
load()
assert add("service.proto").name == "service.proto"
assert descriptor_pool.Default is default
from mlflow.protos import internal_pb2, service_pb2
assert service_pb2.DESCRIPTOR.services_by_name["MlflowService"].methods_by_name["getRun"]
"""

_BEFORE = """
add("service.proto")
load()
from mlflow.protos.service_pb2 import GetRun
assert GetRun(run_id="1").run_id == "1"
"""


@pytest.mark.parametrize("code", [_LATER, _BEFORE], ids=["later", "before"])
def test_a_job_has_a_file_of_the_same_name(code: str) -> None:
    """Services call theirs `service.proto`, as MLflow does."""
    done = subprocess.run(
        [sys.executable, "-c", _LOAD + code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_file_refers_to_what_the_job_has_loaded_under_its_own_name() -> None:
    """The job's own import of MLflow may have ended half-way."""
    pool = descriptor_pool.DescriptorPool()
    for name, needs in (("a.proto", []), ("b.proto", ["a.proto"]), ("c.proto", ["b.proto"])):
        file = descriptor_pb2.FileDescriptorProto(name=name, dependency=needs)
        owner = pool if name == "a.proto" else _RenamingPool(pool)
        owner.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName("mlflow_perf/c.proto")
    [middle] = found.dependencies
    assert [middle.name, *(one.name for one in middle.dependencies)] == [
        "mlflow_perf/b.proto",
        "a.proto",
    ]
