"""A load for a GPU: matrices multiplied through whichever library is there. Imports only errors.

None of the libraries is ours to install: a machine with a GPU for work has one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mlflow_perf.errors import SourceUnavailableError

__all__ = ["gpu_multiplier"]

_SIZE = 4096

Multiply = Callable[[], None]
"""Multiplies two matrices on the first GPU and waits until that is done."""


def _of_torch(torch: Any) -> Multiply:
    if not torch.cuda.is_available():
        raise SourceUnavailableError("PyTorch sees no GPU.")
    matrix = torch.ones((_SIZE, _SIZE), device="cuda")

    def multiply() -> None:
        for _ in range(8):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()

    return multiply


def _of_cupy(cupy: Any) -> Multiply:
    if cupy.cuda.runtime.getDeviceCount() < 1:
        raise SourceUnavailableError("CuPy sees no GPU.")
    matrix = cupy.ones((_SIZE, _SIZE), dtype=cupy.float32)

    def multiply() -> None:
        for _ in range(8):
            cupy.matmul(matrix, matrix)
        cupy.cuda.Stream.null.synchronize()

    return multiply


_LIBRARIES: tuple[tuple[str, Callable[[Any], Multiply]], ...] = (
    ("torch", _of_torch),
    ("cupy", _of_cupy),
)


def gpu_multiplier(load: Callable[[str], Any] = import_module) -> Multiply:
    """Return what keeps the first GPU busy.

    Args:
        load: Imports a library by its name.

    Raises:
        SourceUnavailableError: When no library that can is here, or none sees a GPU.
    """
    why = "No GPU, or neither torch nor cupy is installed to keep one busy."
    for name, multiplier in _LIBRARIES:
        try:
            return multiplier(load(name))
        except ImportError:
            continue
        except SourceUnavailableError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - a driver at odds raises what it likes
            why = f"{name} cannot use the GPU: {type(error).__name__}."
    raise SourceUnavailableError(why)
