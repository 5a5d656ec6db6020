"""Rules of the GPU's load, with fakes of the libraries that need a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.selftest.gpu_load import load_multiplier


def torch(done: list[str], *, gpu: bool = True) -> SimpleNamespace:
    """Return a fake PyTorch that logs its calls."""
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: gpu, synchronize=lambda: done.append("synchronize")
        ),
        ones=lambda shape, device: (shape, device),
        mm=lambda a, b: done.append(a[1]),
    )


def cupy(done: list[str], *, gpus: int = 1) -> SimpleNamespace:
    """Return a fake CuPy that logs its calls."""
    stream = SimpleNamespace(null=SimpleNamespace(synchronize=lambda: done.append("synchronize")))
    runtime = SimpleNamespace(getDeviceCount=lambda: gpus)
    return SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime, Stream=stream),
        float32="float32",
        ones=lambda shape, dtype: dtype,
        matmul=lambda a, b: done.append(a),
    )


def loader(**libraries: SimpleNamespace) -> Callable[[str], SimpleNamespace]:
    """Return an import function that finds only these libraries."""

    def load(name: str) -> SimpleNamespace:
        try:
            return libraries[name]
        except KeyError:
            raise ImportError(name) from None

    return load


def test_the_installed_library_is_used() -> None:
    """The load starts multiplications and waits for them."""
    done: list[str] = []
    load_multiplier(loader(torch=torch(done)))()
    assert done == ["cuda"] * 8 + ["synchronize"]
    done.clear()
    load_multiplier(loader(torch=torch([], gpu=False), cupy=cupy(done)))()
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
def test_without_a_gpu_it_says_why(libraries: dict[str, SimpleNamespace], why: str) -> None:
    """The error says what is missing, so that the check is skipped with a reason."""
    with pytest.raises(SourceUnavailableError, match=why):
        load_multiplier(loader(**libraries))
