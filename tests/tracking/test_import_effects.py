"""What MLflow's import changes in the whole process, and what it leaves."""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from mlflow_perf.tracking.import_effects import _RenamingPool

_LOAD = """
import importlib.metadata, sys
from google.protobuf import descriptor_pb2, descriptor_pool
from mlflow_perf.tracking.mlflow_call import MlflowCall

def read():
    found = [one.metadata for one in importlib.metadata.distributions()]
    return {one["Name"]: one["License"] for one in found}

def add(name):
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop")
    return descriptor_pool.Default().AddSerializedFile(file.SerializeToString())

def load():
    MlflowCall(lambda: None, name="load").result(120)
    assert "importlib_metadata" in sys.modules
"""

_PACKAGES = """
before = read()
load()
assert read() == before
assert not {type(one).__module__ for one in sys.meta_path} & {"importlib_metadata"}
import importlib_metadata
assert type(sys.meta_path[-1]).__module__ == "importlib_metadata"
assert importlib_metadata.version("mlflow-skinny") == importlib.metadata.version("mlflow-skinny")
"""

_PACKAGES_BY_MLFLOW = """
load()
import mlflow
assert type(sys.meta_path[-1]).__module__ == "importlib_metadata"
"""

_OWN_BACKPORT = """
import importlib_metadata
before = list(sys.meta_path)
load()
assert [one for one in sys.meta_path if one in before] == before
assert sum(type(one).__module__ == "importlib_metadata" for one in sys.meta_path) == 1
"""

_PATTERNS = """
class F2py:
    def find_spec(self, name, path=None, target=None):
        if name == "mlflow":
            re._MAXCACHE = 50
import re
sys.meta_path.insert(0, F2py())
load()
assert re._MAXCACHE >= 500
"""

_PROTO_LATER = """
default = descriptor_pool.Default
load()
assert add("service.proto").name == "service.proto"
assert descriptor_pool.Default is default
from mlflow.protos import internal_pb2, service_pb2
assert service_pb2.DESCRIPTOR.services_by_name["MlflowService"].methods_by_name["getRun"]
"""

_PROTO_BEFORE = """
add("service.proto")
load()
from mlflow.protos.service_pb2 import GetRun
assert GetRun(run_id="1").run_id == "1"
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(_PACKAGES, id="packages"),
        pytest.param(_PACKAGES_BY_MLFLOW, id="packages-beside-mlflow"),
        pytest.param(_OWN_BACKPORT, id="backport-of-the-job"),
        pytest.param(_PATTERNS, id="cache-of-patterns"),
        pytest.param(_PROTO_LATER, id="service.proto-later"),
        pytest.param(_PROTO_BEFORE, id="service.proto-before"),
    ],
)
def test_mlflow_is_loaded_without_its_effects_on_others(code: str) -> None:
    """The job's packages, its `importlib.metadata` and its protobuf files are as without us."""
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
