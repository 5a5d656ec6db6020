"""What MLflow's import changes in the whole process, and what it leaves."""

from __future__ import annotations

import random
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.tracking.own_calls import call_as_own, run_alone

from mlflow_perf.tracking.import_effects import changed_modules

_LOAD = """
import importlib.metadata, sys
from mlflow_perf.tracking.mlflow_call import MlflowCall

def read():
    found = [one.metadata for one in importlib.metadata.distributions()]
    return {one["Name"]: one["License"] for one in found}

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


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(_PACKAGES, id="packages"),
        pytest.param(_PACKAGES_BY_MLFLOW, id="packages-beside-mlflow"),
        pytest.param(_OWN_BACKPORT, id="backport-of-the-job"),
        pytest.param(_PATTERNS, id="cache-of-patterns"),
    ],
)
def test_mlflow_is_loaded_without_its_effects_on_others(code: str) -> None:
    """The job's packages and its `importlib.metadata` are as without us."""
    assert run_alone(_LOAD + code) == (0, "", "")


def test_modules_of_a_zip_file_are_loaded_by_one_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is only looked for does not stand in the way of the next."""
    with ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("urllib3_zip/__init__.py", "")
        for name in ("one", "two", "three"):
            archive.writestr(f"urllib3_zip/{name}.py", "import random")
    monkeypatch.syspath_prepend(str(tmp_path / "some.zip"))
    monkeypatch.setattr("mlflow_perf.tracking.own_random._USERS", {"urllib3_zip"})

    def load() -> list[bool]:
        with changed_modules():
            assert find_spec("urllib3_zip.one") is not None
            loaded = [import_module(f"urllib3_zip.{name}") for name in ("two", "three")]
        return [vars(module)["random"] is random for module in loaded]

    assert call_as_own(load) == [False, False]
    assert vars(import_module("urllib3_zip.one"))["random"] is random


def test_nothing_takes_a_lock_before_forks_from_within_the_import_that_forks_wait_for() -> None:
    """A fork that waits would release it without having taken it, and Python prints an error."""
    code = """
import os
from mlflow_perf.tracking import fork_guard
from mlflow_perf.tracking.mlflow_call import MlflowCall
register = os.register_at_fork
def register_and_tell(**hooks):
    if fork_guard._inside and "before" in hooks:
        print(hooks)
    register(**hooks)
os.register_at_fork = register_and_tell
MlflowCall(lambda: print("called"), name="test").result(60)
"""
    assert run_alone(code)[:2] == (0, "called\n")


def test_a_loop_over_all_models_of_pydantic_meets_those_of_the_job() -> None:
    code = """
from pydantic import BaseModel
from mlflow_perf.tracking.mlflow_call import MlflowCall

class Own(BaseModel):
    later: "Later"

class Later(BaseModel):
    of: int

class Deep(Own):
    pass

MlflowCall(lambda: None, name="test").result(60)
for model in BaseModel.__subclasses__():
    model.model_rebuild()
print([model.__name__ for model in BaseModel.__subclasses__()], Own.__subclasses__() == [Deep])
import mlflow
print(len(BaseModel.__subclasses__()) > 20, issubclass(Own, BaseModel), issubclass(int, BaseModel))
"""
    assert run_alone(code)[:2] == (0, "['Own', 'Later'] True\nTrue True False\n")
