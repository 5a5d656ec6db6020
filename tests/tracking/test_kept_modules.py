"""What MLflow brought, and a job that takes it out of `sys.modules`."""

from __future__ import annotations

import pytest
from tests.tracking.own_calls import run_alone

_BEGIN = """
import sys
from mlflow_perf.tracking.mlflow_call import MlflowCall

before = dict(sys.modules)

def call(what=lambda: None):
    return MlflowCall(what, name="test").result(60)

call()
brought = sys.modules["numpy"], sys.modules["pandas"]
for name in set(sys.modules) - before.keys():
    del sys.modules[name]
"""


def test_the_first_import_of_the_job_finds_what_can_be_loaded_once() -> None:
    code = f"""{_BEGIN}
import pandas, google.protobuf.descriptor_pool, yaml
assert (sys.modules["numpy"], pandas) == brought
assert pandas.Series([1, 2]).sum() == 3
import numpy.linalg
print(numpy.linalg.norm([3, 4]))
"""
    assert run_alone(code)[:2] == (0, "5.0\n")


def test_calls_of_ours_find_it_too_and_leave_it_to_the_job() -> None:
    code = f"""{_BEGIN}
call(lambda: __import__("mlflow").MlflowClient)
for name in set(sys.modules) - before.keys():
    del sys.modules[name]
import numpy
print(numpy is brought[0])
"""
    assert run_alone(code)[:2] == (0, "True\n")


@pytest.mark.parametrize("first", ["", "import yaml"], ids=["found-kept", "there"])
def test_what_the_job_has_imported_it_loads_anew(first: str) -> None:
    code = f"""
import sys
from mlflow_perf.tracking.mlflow_call import MlflowCall
MlflowCall(lambda: None, name="test").result(60)
{first or 'del sys.modules["yaml"]'}
import yaml
before = yaml
for name in [name for name in sys.modules if name.startswith("yaml")]:
    del sys.modules[name]
import yaml
print(yaml is before)
"""
    assert run_alone(code)[:2] == (0, "False\n")


def test_a_look_for_a_package_changes_nothing() -> None:
    code = f"""{_BEGIN}
from importlib.util import find_spec
spec = find_spec("numpy")
print(spec.origin == brought[0].__file__, "def" in spec.loader.get_source("numpy"))
print("numpy" in sys.modules)
"""
    assert run_alone(code)[:2] == (0, "True True\nFalse\n")
