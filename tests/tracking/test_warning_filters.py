"""The filters of warnings that come with MLflow's libraries give way to the job's."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.own_cost import bring
from mlflow_perf.tracking.shared_libraries import own_call

_LIBRARY = """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)
warnings.filterwarnings("ignore", "size changed")
warnings.simplefilter("always", BytesWarning)
"""


def _import_as_job(name: str) -> None:
    exec(f"import {name}", {"__name__": "__main__"})


def _import_as_ours(name: str) -> None:
    def call() -> None:
        with bring(), own_call():
            exec(f"import {name}", {"__name__": "mlflow_perf.test"})

    BackgroundCall(call, name="test").result(30)


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Make a library with filters and one that needs it; return their names, which are new."""
    base, top = f"base_{uuid4().hex}", f"top_{uuid4().hex}"
    (tmp_path / f"{base}.py").write_text(_LIBRARY)
    (tmp_path / f"{top}.py").write_text(f"import {base}")
    monkeypatch.syspath_prepend(tmp_path)
    return base, top


@pytest.mark.parametrize("which", [0, 1])
def test_they_are_behind_until_the_job_imports_the_library(
    libraries: tuple[str, str], which: int
) -> None:
    """So they are also where the job imports what needs the library; then all is as without us."""
    base, top = libraries
    add = vars(warnings)["_add_filter"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before: Any = list(warnings.filters)
        _import_as_ours(top)
        assert warnings.filters[: len(before)] == before
        assert len(warnings.filters) == len(before) + 2
        with pytest.raises(RuntimeWarning, match="size changed"):
            warnings.warn("size changed", RuntimeWarning, stacklevel=1)
        _import_as_job(libraries[which])
        assert warnings.filters[2:] == before
        assert [item[0] for item in warnings.filters[:2]] == ["always", "ignore"]
        warnings.warn("size changed", RuntimeWarning, stacklevel=1)
        _import_as_job(base)
        assert warnings.filters[2:] == before
    assert vars(warnings)["_add_filter"] is add


def test_those_of_a_library_that_the_job_uses_are_where_the_library_puts_them(
    libraries: tuple[str, str],
) -> None:
    """A function of it that adds a filter does so for the job, whoever calls it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _import_as_job(libraries[1])
        before: Any = list(warnings.filters)
        code = "import warnings; warnings.simplefilter('ignore', UserWarning)"

        def call() -> None:
            with own_call():
                exec(code, {"__name__": libraries[0]})

        BackgroundCall(call, name="test").result(30)
        assert warnings.filters[1:] == before


JOB = """
import sys, warnings
warnings.simplefilter("error")
before = list(warnings.filters)
import mlflow_perf
with mlflow_perf.report("job", exit_timeout=100):
    pass
assert "mlflow" in sys.modules
assert warnings.filters[:len(before)] == before, warnings.filters
assert len(warnings.filters) > len(before)
import numpy
front = warnings.filters[:warnings.filters.index(before[0])]
texts = [str(getattr(item[1], "pattern", "")) for item in front]
print([text for text in texts if "numpy" in text])
"""


@pytest.mark.e2e
@pytest.mark.usefixtures("store")
def test_a_job_gets_numpys_in_the_order_of_its_own_import(tmp_path: Path) -> None:
    """What MLflow's import leaves is behind the job's, until the job imports numpy."""
    begin, end = JOB.partition("import mlflow_perf")[0], JOB.partition("import numpy")[2]
    bare, ours = (
        subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
        for code in (f"{begin}import numpy{end}", JOB)
    )
    assert ours == bare
    assert "numpy.dtype size changed" in bare


def test_what_the_job_was_warned_of_once_it_is_not_warned_of_again(
    libraries: tuple[str, str],
) -> None:
    """Python forgets that when the filters change, and does so for the job's own changes."""
    registry: dict[Any, Any] = {}

    def warn() -> None:
        warnings.warn_explicit("old", UserWarning, "job.py", 1, registry=registry)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        warn()
        _import_as_ours(libraries[1])
        warn()
        assert len(caught) == 1
        with warnings.catch_warnings():
            pass
        warn()
        assert len(caught) == 2
