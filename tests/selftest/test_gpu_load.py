"""The GPU's load, through stand-ins of the libraries: no GPU was at hand to run it on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.selftest.gpu_load import gpu_multiplier


def torch(done: list[str], *, gpu: bool = True) -> SimpleNamespace:
    """Return a stand-in for PyTorch that notes what is asked of it."""
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: gpu, synchronize=lambda: done.append("synchronize")
        ),
        ones=lambda shape, device: (shape, device),
        mm=lambda a, b: done.append(a[1]),
    )


def cupy(done: list[str], *, gpus: int = 1) -> SimpleNamespace:
    """Return a stand-in for CuPy that notes what is asked of it."""
    stream = SimpleNamespace(null=SimpleNamespace(synchronize=lambda: done.append("synchronize")))
    runtime = SimpleNamespace(getDeviceCount=lambda: gpus)
    return SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime, Stream=stream),
        float32="float32",
        ones=lambda shape, dtype: dtype,
        matmul=lambda a, b: done.append(a),
    )


def loader(**libraries):
    """Return an import function that knows these libraries only."""

    def load(name: str):
        try:
            return libraries[name]
        except KeyError:
            raise ImportError(name) from None

    return load


def test_the_library_that_is_there_is_used() -> None:
    """Multiplications are started, and waited for: a GPU that is only asked is not busy."""
    done: list[str] = []
    gpu_multiplier(loader(torch=torch(done)))()
    assert done == ["cuda"] * 8 + ["synchronize"]
    done.clear()
    gpu_multiplier(loader(torch=torch([], gpu=False), cupy=cupy(done)))()
    assert done == ["float32"] * 8 + ["synchronize"]


@pytest.mark.parametrize(
    ("libraries", "why"),
    [
        ({}, "neither torch nor cupy"),
        ({"torch": torch([], gpu=False)}, "PyTorch sees no GPU"),
        ({"cupy": cupy([], gpus=0)}, "CuPy sees no GPU"),
        ({"cupy": SimpleNamespace()}, "cupy cannot use the GPU"),
    ],
)
def test_without_a_gpu_it_says_why(libraries, why: str) -> None:
    """What is missing is told, and the check is left out."""
    with pytest.raises(SourceUnavailableError, match=why):
        gpu_multiplier(loader(**libraries))
