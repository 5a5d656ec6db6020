"""A job's protobuf files are in one pool with MLflow's."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from tests.tracking.own_calls import run_alone

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
load()
assert add("service.proto").name == "service.proto"
from mlflow.protos import internal_pb2, service_pb2
assert service_pb2.DESCRIPTOR.services_by_name["MlflowService"].methods_by_name["getRun"]
"""

_BEFORE = """
add("service.proto")
load()
from mlflow.protos.service_pb2 import GetRun
assert GetRun(run_id="1").run_id == "1"
"""

_AGAIN = """
load()
import sys
for name in [name for name in sys.modules if name.split(".")[0] == "mlflow"]:
    del sys.modules[name]
import mlflow
from mlflow.protos.service_pb2 import GetRun
assert GetRun.DESCRIPTOR.file.name == "mlflow_perf/service.proto"
"""

_BEGUN = """
import sys
import mlflow
for name in [name for name in sys.modules if name.split(".")[0] == "mlflow"]:
    del sys.modules[name]
load()
from mlflow.protos.service_pb2 import GetRun
assert GetRun.DESCRIPTOR.file.name == "service.proto"
"""

_SCALAPB = """
def add_options():
    file = descriptor_pb2.FileDescriptorProto(name="scalapb/scalapb.proto", package="scalapb")
    file.dependency.append("google/protobuf/descriptor.proto")
    file.message_type.add(name="ScalaPbOptions")
    options = ".google.protobuf.FileOptions"
    file.extension.add(name="options", number=1020, extendee=options, type=8, label=1)
    return descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
"""

_SCALAPB_LATER = (
    _SCALAPB
    + """
load()
assert add_options().extensions_by_name["options"].number == 1020
from mlflow.protos.scalapb import scalapb_pb2
assert scalapb_pb2.DESCRIPTOR.package == "mlflow_perf.scalapb"
assert scalapb_pb2.options.number > 10**8
"""
)

_SCALAPB_BEFORE = (
    _SCALAPB
    + """
add_options()
load()
from mlflow.protos.databricks_pb2 import rpc
from mlflow.protos.service_pb2 import DESCRIPTOR
method = DESCRIPTOR.services_by_name["MlflowService"].methods_by_name["getRun"]
assert method.GetOptions().Extensions[rpc].endpoints[0].path == "/mlflow/runs/get"
"""
)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(_LATER, id="service-later"),
        pytest.param(_BEFORE, id="service-before"),
        pytest.param(_AGAIN, id="loaded-again"),
        pytest.param(_BEGUN, id="loaded-by-the-job-before"),
        pytest.param(_SCALAPB_LATER, id="scalapb-later"),
        pytest.param(_SCALAPB_BEFORE, id="scalapb-before"),
    ],
)
def test_a_job_has_a_file_of_the_same_name(code: str) -> None:
    """Services call theirs `service.proto`, as MLflow does; those of Scala use ScalaPB's."""
    assert run_alone(_LOAD + code) == (0, "", "")


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
